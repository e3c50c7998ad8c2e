"""Explain a refusal: causes, cures, near misses, later cordons, and pods that are not evicted.

A cure is what would unblock the pod. Causes are those of the decision, cures are for the current
state. Invariant: cures and later cordons name only nodes and devices that could run the pod when
empty."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import fields_of
from apportion.core.devices.catalogue import type_matches
from apportion.core.devices.cordons import Cordon
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import (
    HOLDERS_NAMED,
    cause_with_text,
    refused_with_text,
)
from apportion.core.explain.text.words import device_words, listed, many
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.names import natural, near
from apportion.core.placement.feasibility.causes import (
    FREED,
    LASTING,
    LIMIT_CODES,
    Explained,
    cause_of,
    ranked,
    without_gone,
)  # fmt: skip
from apportion.core.placement.feasibility.evaluator import NODES_WEIGHED, Lifting, Room
from apportion_schemas import Device, NearMiss, PodRefused, RefusalCode, Shape

CORDONS_NAMED = 3  # cordoned nodes or devices that are listed with their author
NO_CURE = "no fix: none of these nodes could ever run the pod"
SHORT_CAUSES = 2  # causes that a short sentence names; of more only the first
LIFTED = "nothing to do: uncordoned since then"  # the causes are those of the decision
ENDED = "nothing to do: no node has this problem any more"
LEFT = "nothing to do: the cordoned device is no longer on the node"
AND_END = ", then wait for pods there to end"  # if no cordoned node has room for the pod now
BESIDES: Final = {
    Lifting.SUFFICES: "",
    Lifting.WITH_OTHERS: ", then resolve its other cordons or failures",
    Lifting.THEN_WAIT: AND_END,
}
CORDONS = (
    RefusalCode.NODE_CORDONED, RefusalCode.DEVICE_CORDONED, RefusalCode.NODE_UNSCHEDULABLE,
)  # fmt: skip
OFF_OFFER = (
    *CORDONS, RefusalCode.DEVICE_UNHEALTHY, RefusalCode.NODE_NOT_READY, RefusalCode.NODE_GONE,
)  # fmt: skip


def waits_for(explained: Explained) -> Hashable:
    """Return a key that is equal for pods whose refusals have the same short text."""
    shape, refused = explained.shape, explained.refused
    if isinstance(explained.limit, PodRefused):
        refused = explained.limit
    elif explained.limit is not None:
        return explained.limit
    gang, limits = refused.gang, (refused.volume, refused.queue, refused.quota)
    if gang is not None and gang.present < gang.needed:
        return gang
    shown: Hashable = None
    if not any(limits) or RefusalCode.QUEUE_CARDS_EXCEEDED in refused.reasons:
        refused = without_gone(refused)
        causes = ranked(refused)
        first = causes[0] if len(causes) > SHORT_CAUSES else tuple(causes)
        codes = (None, *(code for code, _ in causes))
        wished = tuple(words.wished(code, shape) for code in codes) if shape is not None else ()
        shown = refused.nodes, first, len(causes), wished
    return gang, limits, explained.never, shape is None, shown


def causes_say_all(explained: Explained) -> bool:
    """Return True if the causes counted per node explain the whole refusal."""
    if explained.never and not explained.limit:
        return True
    whole = words.blocking_limit(explained) or words.whose(explained.refused, explained.shape)
    return not whole and explained.refused.nodes > 0


def refused_answer(
    explainer: Explainer, pod: PodState, explained: Explained, unbelieved: tuple[str, ...] = ()
) -> reads.WhyRefused:
    """Return the answer for a refusal: causes, cordons with authors, and nodes that nearly fit.

    `unbelieved` are nodes that may fit, but whose agents' reports are refused."""
    causes, nearest = refused_rows(explainer, pod, explained, people=not explained.never)
    return reads.WhyRefused(
        revision=pod.refused_revision,
        nodes=explained.refused.nodes,
        causes=causes,
        nearest=nearest,
        never=explained.never,
        unbelieved=unbelieved,
        **words.texts_of(explained),
    )


def refused_rows(
    explainer: Explainer, pod: PodState, explained: Explained, *, people: bool = False
) -> tuple[tuple[reads.CauseRow, ...], tuple[reads.MissRow, ...]]:
    """Return the causes of a refusal with their cures, and the nodes that nearly fit.

    With `people`, the cause of a cordon names its authors."""
    causes = ranked(explained.refused)
    return (
        tuple(_cause_row(explainer, pod, explained, cause, people=people) for cause in causes),
        tuple(_miss_row(explainer, miss, explained) for miss in explained.refused.nearest),
    )


def _node_off(state: State, name: str) -> reads.OffOffer:
    return reads.OffOffer(node=name, cordons=cordon_answers(state.nodes[name].cordons))


def _device_off(state: State, device: str) -> reads.OffOffer:
    cordons = cordon_answers(state.device_cordons[device])
    return reads.OffOffer(state.node_of_device.get(device, ""), device, cordons=cordons)


def cordon_answers(cordons: Iterable[Cordon]) -> tuple[reads.CordonAnswer, ...]:
    """Convert the cordons of a node or device into answers."""
    return tuple(
        reads.CordonAnswer(**fields_of(each, "by reason time revision")) for each in cordons
    )


def _cause_row(
    explainer: Explainer, pod: PodState, explained: Explained,
    cause: tuple[RefusalCode, int], *, people: bool,
) -> reads.CauseRow:  # fmt: skip
    (code, count), state, room = cause, explainer.state, explainer.room
    shape, refused, never = explained.shape, explained.refused, explained.never
    limited, freed = code in LIMIT_CODES, code in FREED
    could, recovers = 0, True
    if shape is not None and not never:
        could = room.could_count(pod) if freed else 0
        recovers = code is not RefusalCode.DEVICE_UNHEALTHY or room.recovers(pod)
    liftable = None
    if code in CORDONS and not never:
        # The cordoned nodes or devices that could run the pod, and what else it waits for.
        lifting = Lifting.SUFFICES
        if shape is None:
            names = [name for name, _ in islice(room.cordoned(code), NODES_WEIGHED)]
        else:
            names, lifting = room.liftable(pod, code)
        liftable = sorted(names, key=natural), BESIDES[lifting]
    held = explainer.holders(pod, refused) if limited and not explained.limit else []
    row = reads.CauseRow(
        code=code, words="", nodes=count, off_offer=code in OFF_OFFER, is_limit=limited,
        held_by=tuple(each.full_name for each in held[:HOLDERS_NAMED]), holders=len(held),
    )  # fmt: skip
    if people and liftable is not None and code is not RefusalCode.NODE_UNSCHEDULABLE:
        off = _device_off if code is RefusalCode.DEVICE_CORDONED else _node_off
        names, more = liftable[0], None  # unknown if the search stopped early
        if len(names) != NODES_WEIGHED:
            more = max(len(names) - CORDONS_NAMED, 0)
        cordoned = tuple(off(state, name) for name in names[:CORDONS_NAMED])
        row = structs.replace(row, cordoned=cordoned, cordoned_more=more)
    besides = _besides(explainer, pod, explained, code) if shape is not None else ""
    besides += "" if recovers else AND_END
    command = ""
    if liftable is not None:
        command, cure = _uncordoned(explainer, code, refused, liftable)
    elif _ended(state, code):
        cure = ENDED
    else:
        never = never or (limited and bool(explained.limit))
        near = next((miss for miss in refused.nearest if miss.code is code), None)
        named = {} if near is None else {"node": near.node, "device": near.device}
        named = {key: name for key, name in named.items() if name}
        cure = words.cure(code, shape, never=never, **named)
    cure += besides
    if 0 < 2 * could <= refused.nodes:  # if most nodes could take the pod, the count is no help
        cure += f" (only {could:,} of {words.nodes(refused.nodes)} could ever run the pod)"
    said = words.cause_text(explained, code)
    # If causes differ, it is unknown for which of them the gang itself uses the devices.
    if freed and explained.own and len(FREED & refused.reasons.keys()) == 1:
        said += f" (on {explained.own:,} of these because of its own gang)"
    return cause_with_text(structs.replace(row, words=said, command=command, cure=cure))


def _ended(state: State, code: RefusalCode) -> bool:
    closes = None if code in LASTING else cause_of(code).closes
    return closes is not None and not any(map(closes, state.nodes.values()))


def _besides(explainer: Explainer, pod: PodState, explained: Explained, code: RefusalCode) -> str:
    state, shape = explainer.state, pod.submitted.shape
    said = fleet_words(state, code, shape)
    if code is not RefusalCode.DEVICE_UNHEALTHY or explained.never:
        return said
    wanted = {ask.family for ask in shape.asks}
    seen = (node.observed for node in state.nodes.values())
    unnamed = (each.unnamed_families for each in seen if each is not None)
    if not all(map(wanted.isdisjoint, unnamed)):
        return f", or for pods of another scheduler to release such devices there{said}"
    return said


def _uncordoned(
    explainer: Explainer, code: RefusalCode, refused: PodRefused, liftable: tuple[list[str], str]
) -> tuple[str, str]:
    """Return the command that lifts a cordon, and what the pod waits for after that."""
    names, besides = liftable
    if not names:
        if next(explainer.room.cordoned(code), None) is not None:
            return "", NO_CURE
        stands = code is RefusalCode.DEVICE_CORDONED and explainer.state.device_cordons
        return "", LEFT if stands else LIFTED
    near = (miss for miss in refused.nearest if miss.code is code)
    nearest = {name for miss in near for name in (miss.node, miss.device)}
    first = next((name for name in names if name in nearest), names[0])
    return words.cure(code, node=first, device=first), besides


def _holders(node: NodeState, miss: NearMiss, shape: Shape | None, room: Room) -> list[str]:
    """Return the names of the node's pods that use devices which the refused pod needs."""
    if miss.code not in FREED:
        return []
    alone = shape is not None and miss.device and sum(ask.count for ask in shape.asks) == 1
    short = {miss.device} if shape is None or alone else room.would_do(shape, node)
    held = (
        pod.full_name
        for pod in node.pods.values()
        if pod.placement is not None
        and any(share.device in short for share in pod.placement.shares)
    )
    return sorted(held, key=natural)


def _miss_row(explainer: Explainer, miss: NearMiss, explained: Explained) -> reads.MissRow:
    room, shape, node = explainer.room, explained.shape, explainer.state.nodes.get(miss.node)
    held_by, kinds, empty = list[str](), None, None
    if node is not None and not explained.never:
        held_by = _holders(node, miss, shape, room)
    if node is not None and shape is not None:
        kinds = _kinds(miss.code, shape, node)
        if miss.code is RefusalCode.DEVICE_IN_USE:
            want, have = room.empty_devices(shape, node)
            empty = (want, have) if have < want else None
    row = reads.MissRow(
        **fields_of(miss, "node device code needed available"),
        held_by=tuple(held_by[:HOLDERS_NAMED]), holders=len(held_by),
        words=words.named(miss.code, shape, never=explained.never),
    )  # fmt: skip
    if empty is not None:
        row = structs.replace(row, needed=empty[0], available=empty[1])
    texts = words.of_miss(miss, shape, kinds, empty)
    return structs.replace(row, **texts)


TYPES_ALIKE: Final = 0.8  # H200 and H100 are less similar, so neither counts as a typo of the other
_C = RefusalCode
# what a device has that the refusal code is about
_KINDS: Final[Mapping[RefusalCode, Callable[[Device], str]]] = {
    _C.TYPE_MISMATCH: lambda device: device.model,
    _C.MODE_MISMATCH: lambda device: device.mode,
    _C.INDEX_MISMATCH: lambda device: str(device.index),
}


def _kinds(code: RefusalCode, shape: Shape, node: NodeState) -> list[str]:
    """Return what the node has instead of the required models, modes, indexes or labels."""
    if code in _KINDS:
        return _there([node], shape, code)
    if code is not _C.NODE_LABELS_MISMATCH:
        return []
    terms, labels = shape.node.required, node.host.labels
    keys = {*shape.node.selector, *(each.key for term in terms for each in term)}
    return [f"{key}={labels[key]}" for key in sorted(keys) if key in labels]


def fleet_words(state: State, code: RefusalCode, shape: Shape) -> str:
    """Return a hint for a refusal by type, mode or node labels, as in `; this fleet has T4`.

    It lists what the fleet has, or names that resemble the requested ones. For other codes, it is
    empty."""
    nodes = state.nodes.values()
    if code is _C.TYPE_MISMATCH:
        models = _there(nodes, shape, code)
        parts = {part for model in models for part in re.split(r"[\s-]+", model)}
        wrong = (
            name
            for name in shape.devices.use_types
            if not any(type_matches(name, model) for model in models)
        )
        alike = (each for name in wrong for each in near(name, parts, alike=TYPES_ALIKE))
        return f"{_has(models)}{_meant(alike)}"
    if code is _C.MODE_MISMATCH:
        return _has(_there(nodes, shape, code))
    return _labels_meant(state, shape) if code is _C.NODE_LABELS_MISMATCH else ""


def _has(things: list[str]) -> str:
    return f"; this fleet has {listed(things, words.KINDS_NAMED)}" if things else ""


def _labels_meant(state: State, shape: Shape) -> str:
    """Return the fleet's labels that resemble a required label which no node has."""
    meant = list[str]()
    for key, value in sorted(shape.node.selector.items()):
        labels = [node.host.labels for node in state.nodes.values() if node.present]
        values = {each[key] for each in labels if key in each}
        if not values:
            keys = near(key, {name for each in labels for name in each})
            meant += [
                f"{name}={value}"
                for name in keys
                if any(each.get(name) == value for each in labels)
            ]
        elif value not in values:
            meant += [f"{key}={each}" for each in near(value, values)]
    return _meant(meant)


def _meant(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return f"; did you mean {listed(found)}?" if found else ""


def _there(nodes: Iterable[NodeState], shape: Shape, code: RefusalCode) -> list[str]:
    wanted = {ask.family for ask in shape.asks}
    held = (each for node in nodes if node.present for each in node.devices if each.present)
    kinds = {_KINDS[code](h.device) for h in held if h.device.family in wanted}
    return sorted(kinds, key=natural)


TAKEN_NAMED = 3  # nodes and devices that are listed; more are counted
_OUT = (RefusalCode.NODE_NOT_READY, RefusalCode.AGENT_SILENT, RefusalCode.NODE_GONE)


def with_taken(explainer: Explainer, pod: PodState, refused: reads.WhyRefused) -> reads.WhyRefused:
    """Add the nodes and devices that became unavailable after the refusal."""
    state = explainer.state
    found = sorted(_cordons(state, pod, explainer.room), key=lambda each: natural(each[0]))
    cordoned = {name for name, _ in found}
    out = tuple(
        reads.OffOffer(node=name, state="silent" if state.nodes[name].silent else "not-ready")
        for name in dict.fromkeys(miss.node for miss in refused.nearest if miss.code not in _OUT)
        if name not in cordoned and name in state.nodes and not state.nodes[name].ready
    )
    named = tuple(each for _, each in found[:TAKEN_NAMED])
    return refused_with_text(
        structs.replace(refused, since=(*named, *out), since_more=len(found) - len(named))
    )


def _cordons(state: State, pod: PodState, room: Room) -> Iterator[tuple[str, reads.OffOffer]]:
    """Yield the nodes and devices that could run the pod but were cordoned after its refusal."""
    shape, refused = pod.submitted.shape, pod.refused_revision
    closed: set[str] = set()
    for name, node in state.nodes.items():
        if node.cordons and node.cordons[0].revision > refused and room.holds(shape, node):
            yield name, _node_off(state, name)
        elif node.cordons:
            closed.add(name)
    for device, cordons in state.device_cordons.items():
        where = state.node_of_device.get(device, "")
        if cordons[0].revision <= refused or not where or where in closed:
            continue
        if room.holds(shape, state.nodes[where]):
            yield f"{device_words(device)} of {where}", _device_off(state, device)


LIMITED = "a pod that would exceed a limit cannot evict other pods"


def spared_words(
    explainer: Explainer, pod: PodState, *, nodes: Iterable[NodeState] | None = None
) -> str:
    """Return which rules protect pods of lower priority from eviction for this pod, as text."""
    state, room = explainer.state, explainer.room
    if pod.uid in state.nominated or pod.refusal is None:
        return ""
    if Explained(pod.refusal, never=False).of_limits:
        return _within_limit(explainer, pod, pod.refusal) if nodes is None else ""
    if nodes is None:
        nodes = room.could(pod.submitted.shape)
    for node, lower in islice(_with_lower(state, pod, nodes), NODES_WEIGHED):
        rules = [rule for each in lower if (rule := _rule(state, pod, each))]
        others = [each for each in lower if not _rule(state, pod, each)]
        if not rules or room.lacks_only(pod.submitted.shape, node, others):
            continue  # not the reason: evicting the other pods would be enough
        if room.lacks_only(pod.submitted.shape, node, lower):
            uses, is_ = ("uses", "is") if len(rules) == 1 else ("use", "are")
            return (
                f"On {node.name}, {many(len(rules), 'pod')} of lower priority {uses} "
                f"resources that this pod needs, but {is_} not evicted: "
                + "; ".join(dict.fromkeys(rules))
            )
    return ""


def _within_limit(explainer: Explainer, pod: PodState, refused: PodRefused) -> str:
    held = explainer.holders(pod, refused)
    lower = sum(each.submitted.priority < pod.submitted.priority for each in held)
    if not lower or explainer.never_within(pod, refused):
        return ""
    if refused.queue:  # pods of other namespaces are not counted for the user
        return f"Pods of lower priority use part of the limit, but cannot be evicted: {LIMITED}"
    uses = "uses" if lower == 1 else "use"
    return (
        f"{many(lower, 'pod')} of lower priority {uses} part of the quota, but cannot be "
        f"evicted: {LIMITED}"
    )


def _with_lower(
    state: State, pod: PodState, nodes: Iterable[NodeState]
) -> Iterator[tuple[NodeState, list[PodState]]]:
    priority = pod.submitted.priority
    for node in nodes:
        lower = [
            each for each in node.pods.values()
            if each.submitted.priority < priority and each.uid not in state.evictions
        ]  # fmt: skip
        if lower:
            yield node, lower


def _rule(state: State, pod: PodState, other: PodState) -> str:
    """Return the rule that protects `other` from eviction for the pod; empty if none does."""
    if not pod.submitted.preempts:
        return "the preemptionPolicy of the pending pod is Never"
    if not other.submitted.evictable:
        return "volcano.sh/preemptable is false"
    queue = queue_of(state, pod)
    if queue_of(state, other) != queue:
        return f"a pod evicts only pods of its own queue ({queue})"
    return ""
