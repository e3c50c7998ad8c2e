"""Redact an answer for a tenant: objects of other namespaces keep only their amounts and nodes.

Invariant: a field that `answers.visibility` does not mark is hidden for other namespaces."""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints

from msgspec import UNSET, Struct, structs

import apportion_schemas as schemas
from apportion.core.answers.reads import CauseRow
from apportion.core.answers.visibility import NOT_TOLD, OF_OTHERS, OTHERS, Kept, Rule, Seen
from apportion.core.explain.text.answer_text import WITH_TEXT

T = TypeVar("T")
Sees = Callable[[str], bool]  # returns True if the client may read a namespace
UNKNOWN: Final = ""  # the namespace of an object whose owner is unknown: no tenant may read it

_EVERYONE, _OWNERS, _PEOPLE = Seen(Rule.EVERYONE), Seen(Rule.OWNERS), Seen(Rule.PEOPLE)
# The marks of events inside answers, because schemas know nothing of visibility
_OF_EVENTS: Final[Mapping[type, Mapping[str, Seen]]] = {
    schemas.Score: dict.fromkeys(("node", "total"), _EVERYONE),
    schemas.Share: dict.fromkeys(
        ("device", "memory_mib", "cores", "instance", "template"), _EVERYONE
    ),
    schemas.MigInstance: dict.fromkeys(("profile", "start", "size"), _EVERYONE),
    schemas.Ask: dict.fromkeys(
        ("count", "family", "memory_mib", "memory_percent", "cores", "profile"), _EVERYONE
    ),
    schemas.NodeWeights: dict.fromkeys(schemas.NodeWeights.__struct_fields__, _EVERYONE),
    schemas.PolicyChanged: {
        **dict.fromkeys(schemas.PolicyChanged.__struct_fields__, _EVERYONE),
        "by": _PEOPLE, "reason": _PEOPLE,
    },
    schemas.PodEvicted: {
        "namespace": Seen(Rule.NAMESPACE), "beneficiary_name": Seen(Rule.NAMES),
        "beneficiary_group": Seen(Rule.NAMES), "kept": Seen(Rule.OWN_ITEMS),
        "node": _EVERYONE, "nominated": _EVERYONE,
    },
    schemas.NodesReserved: {
        "name": Seen(Rule.NAMES), "kept": Seen(Rule.OWN_ITEMS), "starts": _EVERYONE,
    },
    schemas.PodRejected: {
        "namespace": Seen(Rule.NAMESPACE), "value": _PEOPLE, "problem": _PEOPLE, "fix": _PEOPLE,
    },
}  # fmt: skip
_AS_IT_IS: Final = frozenset((Rule.EVERYONE, Rule.OWNERS))
_EVERYONES: Final = frozenset((Rule.EVERYONE,))
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))
# `namespace/name`: a DNS label and a name; gangs have their API group between the two
_NAMED: Final = re.compile(
    r"(?<![\w./-])([a-z0-9][a-z0-9-]*)/(\w(?:[\w.-]*\w)?(?:/\w(?:[\w.-]*\w)?)*)"
)

_OF_THE_CLUSTER: Final = (
    schemas.NodeReported, schemas.NodeGone, schemas.NodeSilent, schemas.NodeHeard,
    schemas.DeviceHealthChanged, schemas.DeviceCordoned, schemas.DeviceUncordoned,
    schemas.DeviceCordonLifted, schemas.NodeCordoned, schemas.NodeUncordoned,
    schemas.NodeCordonLifted, schemas.PolicyChanged, schemas.PricesLearnt, schemas.QueueObserved,
)  # fmt: skip


class _Object(Enum):
    """Whether the redacted object is of the cluster, or of a visible or hidden namespace."""

    CLUSTERS = auto()
    SEEN = auto()
    HIDDEN = auto()


def redacted(answer: T, sees: Sees) -> T:
    """Return the answer with only the fields that the client may see."""
    shown: T = _redacted(answer, sees, _Object.CLUSTERS)
    return shown


def namespaces_in(answer: Any) -> set[str]:
    """Return all namespaces that the answer may be about."""
    found: set[str] = set()
    _collect(answer, Rule.OWNERS, found)
    return found


def _collect(value: Any, by: Rule, found: set[str]) -> None:
    if isinstance(value, str):
        if by is Rule.NAMESPACE or by is Rule.NAMESPACES:
            found.add(value)
        elif by is Rule.NAMES:
            found.add(value.partition("/")[0])
        elif by is Rule.PEOPLE:
            found.update(match[1] for match in _NAMED.finditer(value))
    elif isinstance(value, Struct):
        for name, seen in marks_of(type(value)).items():
            field = getattr(value, name)
            if field and not (seen.by in _AS_IT_IS and type(field) in _PLAIN):
                _collect(field, seen.by, found)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _collect(key, by, found)
            _collect(each, by, found)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, by, found)


@cache
def marks_of(kind: type) -> dict[str, Seen]:
    """Return the mark of each field of a struct; a field without a mark has `Rule.OWNERS`."""
    names = getattr(kind, "__struct_fields__", ())
    if kind in _OF_EVENTS:
        return {name: _OF_EVENTS[kind].get(name, _OWNERS) for name in names}
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: next(
            (each for each in getattr(hints[name], "__metadata__", ()) if isinstance(each, Seen)),
            _OWNERS,
        )
        for name in names
    }


def _redacted(value: Any, sees: Sees, whose: _Object) -> Any:
    if isinstance(value, Struct):
        return _struct(value, sees, whose)
    if isinstance(value, Mapping):
        return {key: _redacted(each, sees, whose) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_redacted(each, sees, whose) for each in value)
    return value


def _struct(value: Struct, sees: Sees, whose: _Object) -> Struct:
    for name, by in _namespace_fields(type(value)) if whose is not _Object.HIDDEN else ():
        about = getattr(value, name)
        if about is not None:
            seen = sees(about) if by is Rule.NAMESPACE else all(map(sees, about))
            whose = _Object.SEEN if seen else _Object.HIDDEN
            break
    as_it_is = _AS_IT_IS if whose is _Object.SEEN else _EVERYONES
    changed = {}
    for name, mark in marks_of(type(value)).items():
        field = getattr(value, name)
        if mark.by in as_it_is and (type(field) in _PLAIN or not field):
            continue  # most fields: a thousand pods have forty each
        shown = _field(field, mark, sees, whose)
        if shown is not field:
            changed[name] = shown
    if isinstance(value, CauseRow) and OF_OTHERS in changed.get("held_by", ()):
        # the count would reveal other namespaces' pods
        changed |= {"held_by": (OF_OTHERS,), "holders": 0}
    made = structs.replace(value, **changed) if changed else value
    text = None if whose is _Object.HIDDEN else WITH_TEXT.get(type(value))
    return made if text is None else text(made)


@cache
def _namespace_fields(kind: type) -> tuple[tuple[str, Rule], ...]:
    rules = {name: seen.by for name, seen in marks_of(kind).items()}
    return tuple(each for each in rules.items() if each[1] in (Rule.NAMESPACE, Rule.NAMESPACES))


def _field(value: Any, seen: Seen, sees: Sees, whose: _Object) -> Any:
    hidden = whose is _Object.HIDDEN
    shown: Any = ""  # a sentence, which is made again later
    match seen.by:
        case Rule.EVERYONE:
            shown = _redacted(value, sees, whose)
        case Rule.EACH:
            shown = _redacted(value, sees, _Object.CLUSTERS)
        case Rule.NAMESPACE:
            shown = OTHERS if hidden else value
        case Rule.NAMESPACES:
            shown = (OTHERS,) if hidden else value
        case Rule.OWNERS if whose is _Object.SEEN:
            shown = _redacted(value, sees, whose)
        case Rule.OWNERS | Rule.READERS:
            shown = _emptied(value, seen, sees)
        case _ if hidden:
            shown = _emptied(value, seen, sees)
        case Rule.NAMES:
            shown = _texts(
                value,
                lambda name: OF_OTHERS if "/" in name and not sees(name.split("/")[0]) else name,
            )
        case Rule.PEOPLE:
            shown = _texts(
                value,
                lambda each: (
                    _redacted(each, sees, _Object.CLUSTERS)
                    if isinstance(each, Struct)
                    else _blanked(each, sees)
                ),
            )
        case Rule.OWN_ITEMS:
            own = (each for each in value if sees(each.namespace))
            shown = tuple(_redacted(each, sees, whose) for each in own)
    return shown


def _emptied(value: Any, seen: Seen, sees: Sees) -> Any:
    """Return an empty value of the same type as `value`, so that clients can decode it."""
    if not isinstance(seen.instead, Kept):
        return seen.instead
    if isinstance(value, Enum):
        return value
    if isinstance(value, Struct):
        return _struct(value, sees, _Object.HIDDEN)
    if isinstance(value, str):
        return value and NOT_TOLD
    return None if value is None or value is UNSET else type(value)()


def _texts(value: Any, shown: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {shown(key): shown(each) for key, each in value.items()}
    return tuple(map(shown, value))


def _blanked(text: str, sees: Sees) -> str:
    return _NAMED.sub(lambda match: match[0] if sees(match[1]) else OF_OTHERS, text)


def event_namespaces(data: Any) -> set[str]:
    """Return every namespace that the decoded JSON of an event may mention."""
    if isinstance(data, str):
        return {match[1] for match in _NAMED.finditer(data)}
    if isinstance(data, Mapping):
        own = data.get("namespace")
        found = {own} if isinstance(own, str) else set[str]()
        return found.union(*map(event_namespaces, (*data.keys(), *data.values())))
    return set[str]().union(*map(event_namespaces, data)) if isinstance(data, list) else set()


def event_redacted(data: Any, sees: Sees) -> Any:
    """Redact an event, given as decoded JSON, for a client that may read its namespace."""
    if isinstance(data, str):
        return _blanked(data, sees)
    if isinstance(data, Mapping):
        return {
            _blanked(key, sees): event_redacted(each, sees)
            for key, each in data.items()
            if not _of_others(each, sees)
        }
    if isinstance(data, list):
        return [event_redacted(each, sees) for each in data if not _of_others(each, sees)]
    return data


def _of_others(part: Any, sees: Sees) -> bool:
    namespace = part.get("namespace") if isinstance(part, Mapping) else None
    return isinstance(namespace, str) and not sees(namespace)


def namespaces_of(data: Struct, of_pod: Callable[[str], str]) -> tuple[str, ...]:
    """Return the sorted namespaces that an event is about; empty for a cluster event."""
    if isinstance(data, _OF_THE_CLUSTER):
        return ()
    if isinstance(data, schemas.PodAdopted):
        return (data.submitted.namespace,)
    found = set[str]()
    namespace = getattr(data, "namespace", None)
    group = getattr(data, "group", "")
    if namespace is not None:
        found.add(namespace)
    elif uid := getattr(data, "pod", "") or getattr(data, "uid", ""):
        found.add(of_pod(uid))
    elif group:
        found.add(group.partition("/")[0])
    if beneficiary := getattr(data, "beneficiary_name", ""):
        found.add(beneficiary.partition("/")[0])
    for several in ("shares", "unshared", "others"):
        for each in getattr(data, several, ()):
            if hasattr(each, "namespace"):
                found.add(each.namespace)
            elif several == "unshared":
                found.add(of_pod(each.pod) if each.pod else UNKNOWN)
    return tuple(sorted(found)) or (UNKNOWN,)
