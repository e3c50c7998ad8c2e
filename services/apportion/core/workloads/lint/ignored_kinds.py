"""Documents that stand beside workloads, as a Service does: every verb passes over the same ones.

Invariant: nothing is passed over that holds a pod, or is of a kind of ours in another version.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from apportion.core.workloads.document import items_of
from apportion.core.workloads.kinds.controllers import JOB_TEMPLATES, TEMPLATES
from apportion.core.workloads.kinds.priority_classes import KIND, class_of, unusable
from apportion.core.workloads.reading import TAKEN, known_kinds

LISTED: Final = 8
LIST: Final = ("", "List")
_OURS: Final = {
    (version.rpartition("/")[0], kind) for version, kind in (*TAKEN, *TEMPLATES, *JOB_TEMPLATES)
} | {LIST}
_NAMELESS: Final = "a document without a kind"


def others_in(document: object) -> Iterator[str]:
    """What is passed over of a document, or of the items of a List, by its name.

    A priority class is used for the pods beside it, so it is not passed over.
    """
    for _, item in items_of(document)[0]:
        if is_other(item) and class_of(item) is None:
            yield called(item)


def is_other(document: object) -> bool:
    """Whether a document is neither a workload nor a limit, and so none of our concern."""
    if not isinstance(document, dict) or not document or holds_pods(document):
        return False
    if unusable(document):
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    if version is None and kind is None:
        return True
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return (version.rpartition("/")[0], kind) not in _OURS


def holds_pods(value: object) -> bool:
    """Whether there is a pod somewhere in a document."""
    if isinstance(value, dict):
        listed = value.get("containers")
        first = listed[0] if isinstance(listed, list) and listed else value.get("container")
        return (isinstance(first, dict) and "image" in first) or any(
            holds_pods(each) for each in value.values()
        )
    return isinstance(value, list) and any(holds_pods(each) for each in value)


def called(document: object) -> str:
    """A document in a list of such, as in `Service web`: most have a namespace only by default."""
    about = document if isinstance(document, dict) else {}
    metadata = about.get("metadata")
    parts = metadata if isinstance(metadata, dict) else {}
    named = [str(parts[key]) for key in ("namespace", "name") if parts.get(key)]
    kind = str(about.get("kind") or _NAMELESS)
    return f"{kind} {'/'.join(named)}".strip()[:512]


def found_as(name: str, where: str) -> str:
    """What is passed over so that it is found: by its name, or else by where it stands."""
    return f"{name} in {where}" if name == _NAMELESS else name


def passed_over_words(names: Collection[str]) -> str:
    """The line that tells of them."""
    first = list(names)[:LISTED]
    more = len(names) - len(first)
    return f"passed over: {', '.join(first)}" + (f" and {more:,} more" if more > 0 else "")


def nothing_taken_words(contents: Iterable[object]) -> str:
    """What is wrong with files where all that there is was passed over, or is a priority class."""
    items = (item for document in contents for _, item in items_of(document)[0])
    if any(class_of(item) is not None for item in items):
        return (
            f"holds no workload, and a {KIND} counts for the pods that are given with it alone: "
            "give both at once, as in -f class.yaml -f pods.yaml"
        )
    return f"holds neither a workload nor a limit: write one of {known_kinds()}"
