"""What a person sees who may read some namespaces only: his own in full, of others that there is
something and how much of what, but not whose.

It works on answers as they go over the wire, whatever they are of: an object that names a namespace
which he does not see keeps its amounts and places and loses everything else, and in all texts names
of what is in such namespaces are blanked. Invariant: what is not known to be harmless is left out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PodAdopted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
)

Sees = Callable[[str], bool]
"""Whether a namespace is seen."""

OTHERS: Final = "another namespace"
"""What stands in the place of a namespace that is not seen."""
OF_OTHERS: Final = "(of another namespace)"
"""What stands in the place of a name, or of words about it."""
NOT_TOLD: Final = "-"
HELD_BY: Final = "; held by "
"""Before the pods that hold what a limit allows: who sees some of them learns not how many."""
UNKNOWN: Final = ""
"""The namespace of something of which nobody knows whose it is: it is seen by nobody."""

_KEPT: Final = frozenset((
    "node", "device", "index", "model", "mode", "family", "instance", "template", "phase",
    "score", "total", "declared", "min_available",
    "memory_mib", "cores", "shares", "share", "start", "size", "profile", "slots",
    "pods", "devices", "position", "nominated", "leaving",
    "hours", "gpu_hours", "gib_hours", "cost", "idle_now",
    "from", "to", "was", "node_without", "attempt", "outcome", "placed", "refused", "revision",
    "time",
    "submitted_revision", "submitted_time", "placed_revision", "placed_time", "bound_revision",
    "allocated_revision", "refused_revision", "since_revision", "since_time",
    "from_revision", "from_time", "to_revision", "to_time", "decision_revision",
))  # fmt: skip
"""Fields of an object of another namespace that say how much and where, and not whose."""

_NAMED: Final = re.compile(
    r"(?<![\w./-])([a-z0-9][a-z0-9-]*)/(\w(?:[\w.-]*\w)?(?:/\w(?:[\w.-]*\w)?)*)"
)
"""`namespace/name` in a text: a label of DNS that nothing stands before, and a name.

Gangs have their API group between the two; names from elsewhere may have more letters.
"""

_FREE_TEXTS: Final = (3, 6, 8)
"""Fields of a `PackedNode` in which people or drivers write: `cordon`, `notes` and `cordons`."""

_ABOUT_NOBODY: Final = (
    NodeReported, NodeGone, NodeSilent, NodeHeard, DeviceHealthChanged,
    DeviceCordoned, DeviceUncordoned, DeviceCordonLifted,
    NodeCordoned, NodeUncordoned, NodeCordonLifted, PolicyChanged, PricesLearnt, QueueObserved,
)  # fmt: skip
"""Events that are about the cluster, and of no namespace."""


def namespaces_in(answer: Any) -> set[str]:
    """Every namespace that an answer speaks of, as far as it can be one: to be asked about."""
    found: set[str] = set()
    for text in _texts(answer):
        found.update(match[1] for match in _NAMED.finditer(text))
    for each in _objects(answer):
        for name in (each.get("namespace"), each.get("whose"), *(each.get("namespaces") or ())):
            if isinstance(name, str):
                found.add(name)
    return found


def seen(answer: Any, sees: Sees) -> Any:
    """The answer, as JSON is decoded, for a person who sees these namespaces."""
    if isinstance(answer, Mapping):
        namespace = answer.get("namespace")
        if isinstance(namespace, str) and not sees(namespace):
            return _masked(answer)
        about = answer.get("namespaces")
        if "sentence" in answer and isinstance(about, list) and not all(map(sees, about)):
            return _not_shown(answer)
        return {_blanked(key, sees): seen(value, sees) for key, value in answer.items()}
    if isinstance(answer, list):
        return [seen(each, sees) for each in answer if not _evicted(each, sees)]
    return _blanked(answer, sees) if isinstance(answer, str) else answer


def _evicted(item: Any, sees: Sees) -> bool:
    """Whether it is the eviction of a pod that is not seen, an event of which nothing is left."""
    event = isinstance(item, Mapping) and {"beneficiary_name", "reason"} <= item.keys()
    return event and not sees(item["namespace"])


def fleet_seen(answer: dict[str, Any], sees: Sees) -> dict[str, Any]:
    """A `FleetAnswer`, whose rows are arrays: see `packed`."""
    for row in answer["nodes"]:
        row[7] = [pod if sees(pod[0]) else [OTHERS, "", *pod[2:4], ""] for pod in row[7]]
        for place in _FREE_TEXTS:
            row[place] = seen(row[place], sees)
    for row in answer["used"]:
        row[1] = [use for use in row[1] if sees(use[0].partition("/")[0])]
    return answer


def fleet_namespaces(answer: dict[str, Any]) -> set[str]:
    """Every namespace in a `FleetAnswer`."""
    held = {pod[0] for row in answer["nodes"] for pod in row[7]}
    held |= namespaces_in([row[place] for row in answer["nodes"] for place in _FREE_TEXTS])
    return held | {use[0].partition("/")[0] for row in answer["used"] for use in row[1]}


def _masked(hidden: Mapping[str, Any]) -> dict[str, Any]:
    """An object of another namespace, and everything in it."""
    return {
        key: OTHERS if key == "namespace" else _within(value) if key in _KEPT else _empty(value)
        for key, value in hidden.items()
    }


def _within(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _masked(value)
    return [_within(each) for each in value] if isinstance(value, list) else value


def _empty(value: Any) -> Any:
    """Nothing of the same form, so that whoever decodes an answer still can."""
    if isinstance(value, str):
        return value and NOT_TOLD
    return None if value is None else type(value)()


def _not_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row about an event of another namespace: that there was one, of what type, and when."""
    return {**row, "sentence": OF_OTHERS, "subject": "", "source": "", "namespaces": [OTHERS]}


def _blanked(text: str, sees: Sees) -> str:
    if "/" not in text:
        return text

    def blank(match: re.Match[str]) -> str:
        return match[0] if sees(match[1]) else OF_OTHERS

    shown = _NAMED.sub(blank, text)
    if shown != text and HELD_BY in shown:
        return f"{shown.partition(HELD_BY)[0]}{HELD_BY}pods of several namespaces"  # and no count
    return shown


def _texts(answer: Any) -> Iterator[str]:
    if isinstance(answer, str):
        if "/" in answer:
            yield answer
    elif isinstance(answer, Mapping):
        for key, value in answer.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from _texts(each)


def _objects(answer: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(answer, Mapping):
        yield answer
        for each in answer.values():
            yield from _objects(each)
    elif isinstance(answer, list):
        for each in answer:
            yield from _objects(each)


def namespaces_of(data: Struct, of_pod: Callable[[str], str]) -> tuple[str, ...]:
    """The namespaces that an event is about, in order; none for what is about the cluster.

    `of_pod` says the namespace of the pod of a uid, or `UNKNOWN`, which whoever is not told of
    everything does not see.
    """
    if isinstance(data, _ABOUT_NOBODY):
        return ()
    return tuple(sorted(set(_named(data, of_pod)))) or (UNKNOWN,)


def _named(data: Any, of_pod: Callable[[str], str]) -> Iterable[str]:
    if isinstance(data, PodAdopted):
        yield data.submitted.namespace
        return
    namespace = getattr(data, "namespace", None)
    if namespace is not None:
        yield namespace
    else:
        uid = getattr(data, "pod", "") or getattr(data, "uid", "")
        group = getattr(data, "group", "")
        if uid:
            yield of_pod(uid)
        elif group:
            yield group.partition("/")[0]
    if beneficiary := getattr(data, "beneficiary_name", ""):
        yield beneficiary.partition("/")[0]
    for several in ("shares", "unshared", "others"):
        for each in getattr(data, several, ()):
            if hasattr(each, "namespace"):
                yield each.namespace
            elif several == "unshared":
                yield of_pod(each.pod) if each.pod else UNKNOWN
