"""By its uid: whether a pod is of a watched folder, or was submitted by hand.

Invariant: no other pod has a uid that begins as those of a folder do, for theirs are UUIDs.
"""

from typing import Final

OF_FOLDER: Final = "manifest-"
"""What the uids of a folder's pods begin with."""


def of_folder(uid: str) -> bool:
    """Whether a watcher reads the pod from a folder of manifests."""
    return uid.startswith(OF_FOLDER)
