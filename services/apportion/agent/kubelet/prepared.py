"""Which claims are prepared on this node, and whose they are.

The kubelet's checkpoint of devices does not know pods that have devices by claims alone, so what
they use is known from here. Invariant: a claim stands in the book from before anything is made for
it until the kubelet has it taken back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from apportion.agent.boot_book import BootBook

_SAVED: Final = "claims.json"


def claim_slot(claim: str) -> str:
    """The CDI name of a claim, by its uid."""
    return f"claim-{claim}"


class Prepared:
    """The uid of each claim's pod by the claim's uid, in the folder that outlives a reboot."""

    def __init__(self, folder: Path, proc: Path) -> None:
        self._book = BootBook(folder / _SAVED, proc, str)

    def pods(self) -> set[str]:
        """The uids of pods that have a prepared claim."""
        return set(self._book.entries.values())

    def claims(self) -> set[str]:
        """The uids of the prepared claims."""
        return set(self._book.entries)

    def note(self, claim: str, pod: str) -> None:
        """Put the claim into the book. Raises OSError."""
        self._book.note(claim, pod)

    def strike(self, claim: str) -> None:
        """Strike it out. Raises OSError."""
        self._book.strike(claim)
