"""Explain a refusal: causes, cures, near misses, later cordons and spared pods.

Counts and amounts are those of the decision, cures are for the current state. Invariants: cures and
later cordons name only nodes and devices that could run the pod when empty. A preemption rule is
named only for a node where the pods that it spares have what is lacking. Only the number of spared
pods is shown, because they may be in any namespace; for a queue not even the number."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import Part, fields_of, joined
from apportion.core.devices.catalogue import type_matches
from apportion.core.devices.cordons import Cordon
from apportion.core.explain.explainer import (
    NODES_WEIGHED,
    BeyondLimit,
    Explained,
    Room,
    TooFewPlaces,
    holders,
    never_within,
)
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import (
    HOLDERS_NAMED,
    cause_with_text,
    refused_with_text,
)
from apportion.core.explain.text.event_text import listed
from apportion.core.explain.text.natural import natural
from apportion.core.explain.text.words import device_words, many
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.similarity import near
from apportion_schemas import Device, NearMiss, PodRefused, RefusalCode, Shape

CORDONS_NAMED = 3  # cordoned nodes or devices that are listed with their author
NO_CURE = "no fix: none of these could ever run the pod"
SHORT_CAUSES = 2  # causes that a short sentence names; of more only the first
LIFTED = "nothing to do: uncordoned since then"  # the causes are those of the decision
LEFT = "nothing to do: the cordoned device has left"
AND_END = ", then wait for pods there to end"  # if no cordoned node has room for the pod now
AND_ELSE = ", then resolve its other cordons or failures"
CORDONS = (
    RefusalCode.NODE_CORDONED, RefusalCode.DEVICE_CORDONED, RefusalCode.NODE_UNSCHEDULABLE,
)  # fmt: skip
OFF_OFFER = (
    *CORDONS, RefusalCode.DEVICE_UNHEALTHY, RefusalCode.NODE_NOT_READY, RefusalCode.NODE_GONE,
)  # fmt: skip


def refusal_words(explained: Explained, *, short: bool = False) -> str:
    """Return a refusal as one sentence, including "can never fit"; `short` is for lists."""
    return refusal_causes(explained, short=short).sentence


def refusal_causes(
    explained: Explained, *, short: bool = False, lead: str = f"{words.NEVER}: "
) -> words.Causes:
    """Return the clauses of `refusal_words`; `lead` replaces its "can never fit"."""
    if limit := limit_words(explained):
        return words.Causes("", (limit,))
    refused, never = explained.refused, explained.never
    found = words.refusal_causes(refused, explained.shape, short=short, never=never)
    before = lead if never else whose(refused, explained.shape)
    return words.Causes(before + found.lead, found.clauses)


def because(explained: Explained, *, short: bool = False) -> str:
    """Return the refusal as one sentence, without "can never fit"."""
    return refusal_causes(explained, short=short, lead="").sentence


def cause_words(explained: Explained) -> str:
    """Return the refusal in a few words: its limit, or its first cause in the current state."""
    if limit := limit_words(explained):
        return limit
    said = words.cause(explained.refused, explained.shape, never=explained.never)
    return (
        f"{words.NEVER_LISTED}: {said}"
        if explained.never
        else whose(explained.refused, explained.shape) + said
    )


def whose(refused: PodRefused, shape: Shape | None) -> str:
    """Return a prefix for a refusal that may be about another pod of the gang, else empty."""
    return "for one pod of its gang, " if shape is None and refused.gang is None else ""


def reason_words(explained: Explained) -> str:
    """Return the main reason: a limit, the gang, or the first cause and the nearest node."""
    return joined(reason_parts(explained))


def reason_parts(explained: Explained) -> tuple[str | Part, ...]:
    """Return the parts of `reason_words`; the first may be "can never fit"."""
    if limit := _limit_of(explained):
        return (limit,)
    refused, said = explained.refused, because(explained, short=True)
    near = words.nearest(refused.nearest[0], explained.shape) if refused.nearest else ()
    never = (words.IT_NEVER,) if explained.never else ()
    return (*never, said, *(("; ", *near) if near else ()))


def _limit_of(explained: Explained) -> str:
    return limit_words(explained) or words.limit_of(explained.refused)


def limit_words(explained: Explained) -> str:
    """Describe the limit that is too small for the pod; empty if there is none."""
    match explained.limit:
        case BeyondLimit(queue, quota, resource, most, needed, together):
            allowed, wanted = (words.of_resource(resource, of) for of in (most, needed))
            whose = f"its queue {queue}" if queue else f"its ResourceQuota {quota}"
            needs = f"its gang needs {wanted} together" if together else f"the pod needs {wanted}"
            return f"{whose} caps {resource} at {allowed}, but {needs}"
        case TooFewPlaces(needed, places, none):
            said = (
                f"its gang needs to place {many(needed, 'pod')} together, but only {places:,} "
                "would fit on an empty fleet"
            )
            return said + (f", with no node for {listed(list(none))}" if none else "")
        case PodRefused() as refused:
            return words.refusal(refused, explained.shape)
    return ""


def waits_for(explained: Explained) -> Hashable:
    """Return a key that is equal for pods whose causes have the same short text."""
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
        refused = words.without_gone(refused)
        causes = words.ranked(refused)
        first = causes[0] if len(causes) > SHORT_CAUSES else tuple(causes)
        codes = (None, *(code for code, _ in causes))
        wished = tuple(words.wished(code, shape) for code in codes) if shape is not None else ()
        shown = refused.nodes, first, len(causes), wished
    return gang, limits, explained.never, shape is None, shown


def causes_say_all(explained: Explained) -> bool:
    """Return True if the refusal has no causes other than those counted per node."""
    if explained.never and not explained.limit:
        return True
    refused = explained.refused
    return not (_limit_of(explained) or whose(refused, explained.shape)) and refused.nodes > 0


def refused_answer(
    state: State, pod: PodState, explained: Explained, room: Room, unbelieved: tuple[str, ...] = ()
) -> reads.WhyRefused:
    """Return a refusal with all causes, cordons, near misses and unbelieved nodes."""
    causes, nearest = refused_rows(state, explained, pod, room)
    if not explained.never:
        causes = tuple(_with_people(state, row, explained, pod, room) for row in causes)
    return reads.WhyRefused(
        revision=pod.refused_revision,
        nodes=explained.refused.nodes,
        causes=causes,
        nearest=nearest,
        never=explained.never,
        limit=_limit_of(explained),
        reason=reason_words(explained),
        reason_parts=reason_parts(explained),
        text=because(explained),
        unbelieved=unbelieved,
    )


def refused_rows(
    state: State, explained: Explained, pod: PodState, room: Room
) -> tuple[tuple[reads.CauseRow, ...], tuple[reads.MissRow, ...]]:
    """Return the causes of a refusal with their cures, and near misses."""
    shape, ranked = explained.shape, words.ranked(explained.refused)
    could = ""
    if (
        shape is not None
        and not explained.never
        and not words.FREED.isdisjoint(explained.refused.reasons)
    ):
        count = room.once(("could", pod.shape_key), lambda: sum(1 for _ in room.could(shape)))
        of = explained.refused.nodes
        if 0 < 2 * count <= of:  # if most nodes could take the pod, the count is no help
            could = f" (only {count:,} of {words.nodes(of)} could ever run the pod)"
    causes = tuple(
        _cause_row(state, code, count, explained, pod, room=room, could=could)
        for code, count in ranked
    )
    return causes, tuple(
        _miss_row(state, miss, shape, room, holders=not explained.never)
        for miss in explained.refused.nearest
    )


def _with_people(
    state: State, row: reads.CauseRow, explained: Explained, pod: PodState, room: Room
) -> reads.CauseRow:
    """Add the authors of cordons to a cause, for the first nodes or devices that would fit."""
    if row.code not in (RefusalCode.NODE_CORDONED, RefusalCode.DEVICE_CORDONED):
        return row
    names, _ = _liftable(state, row.code, explained, pod, room)
    if not names:
        return row
    of_device = row.code is RefusalCode.DEVICE_CORDONED
    cordoned = tuple(
        reads.OffOffer(
            node=state.node_of_device.get(name, "") if of_device else name,
            device=name if of_device else "",
            cordons=cordon_answers(
                state.device_cordons[name] if of_device else state.nodes[name].cordons
            ),
        )
        for name in names[:CORDONS_NAMED]
    )
    more: int | None = len(names) - len(cordoned)
    if len(names) == NODES_WEIGHED:
        more = None  # the search stopped here
    return cause_with_text(structs.replace(row, cordoned=cordoned, cordoned_more=more))


def cordon_answers(cordons: Iterable[Cordon]) -> tuple[reads.CordonAnswer, ...]:
    """Convert the cordons of a node or device into answers."""
    return tuple(
        reads.CordonAnswer(**fields_of(each, "by reason time revision")) for each in cordons
    )


def _cause_row(
    state: State, code: RefusalCode, count: int, explained: Explained, pod: PodState,
    *, room: Room, could: str,
) -> reads.CauseRow:  # fmt: skip
    limited, shape, refused = code in words.LIMIT_CODES, explained.shape, explained.refused
    command = ""
    if code in CORDONS and not explained.never:
        liftable = _liftable(state, code, explained, pod, room)
        command, cure = _uncordoned(state, code, refused, liftable)
    else:
        never = explained.never or (limited and bool(explained.limit))
        cure = words.cure(code, never=never, **_nearest(code, refused))
    if shape is not None:
        cure += _besides(state, code, explained, pod, room)
    held = holders(room, state, pod, refused) if limited and not explained.limit else []
    if not limited:
        said = words.named(code, shape, never=explained.never)
    elif refused.queue is not None and not explained.limit:
        said = words.queue(refused.queue)
    elif refused.quota is not None and not explained.limit:
        said = words.quota(refused.quota)
    else:
        said = limit_words(explained)
    if code in words.FREED:
        cure += could
        # If causes differ, it is unknown for which of them the gang itself uses the devices.
        if explained.own and len(words.FREED & refused.reasons.keys()) == 1:
            said += f" (on {explained.own:,} of these because of its own gang)"
    return cause_with_text(reads.CauseRow(
        code=code, words=said, nodes=count, command=command, cure=cure,
        held_by=tuple(each.full_name for each in held[:HOLDERS_NAMED]), holders=len(held),
        off_offer=code in OFF_OFFER, is_limit=limited,
    ))  # fmt: skip


def _nearest(code: RefusalCode, refused: PodRefused) -> dict[str, str]:
    """Return the names to put into a fix: the nearest node with this code, and its device."""
    found = next((miss for miss in refused.nearest if miss.code is code), None)
    names = {} if found is None else {"node": found.node, "device": found.device}
    return {key: name for key, name in names.items() if name}


def _besides(
    state: State, code: RefusalCode, explained: Explained, pod: PodState, room: Room
) -> str:
    shape, said = pod.submitted.shape, ""
    ails = code is RefusalCode.DEVICE_UNHEALTHY and not explained.never
    wanted = {ask.family for ask in shape.asks}
    seen = (node.observed for node in state.nodes.values())
    unnamed = (each.unnamed_families for each in seen if each is not None)
    if ails and not all(map(wanted.isdisjoint, unnamed)):
        said = ", or for pods of another scheduler to release such devices there"
    said += fleet_words(state, code, shape)
    if not ails:
        return said
    failed = (node for node in state.nodes.values() if any(not h.healthy for h in node.devices))
    recovered = room.once(
        ("recovered", pod.shape_key),
        lambda: any(room.fits_on_offer(shape, node) for node in islice(failed, NODES_WEIGHED)),
    )
    return said if recovered else said + AND_END


def _uncordoned(
    state: State, code: RefusalCode, refused: PodRefused, liftable: tuple[list[str], str]
) -> tuple[str, str]:
    """Return the cure for a cordon: a command, and the remaining requirements as text."""
    names, besides = liftable
    if not names:
        if next(_cordoned(state, code), None) is not None:
            return "", NO_CURE
        stands = code is RefusalCode.DEVICE_CORDONED and state.device_cordons
        return "", LEFT if stands else LIFTED
    near = (miss for miss in refused.nearest if miss.code is code)
    nearest = {name for miss in near for name in (miss.node, miss.device)}
    first = next((name for name in names if name in nearest), names[0])
    return words.cure(code, node=first, device=first), besides


def _liftable(
    state: State, code: RefusalCode, explained: Explained, pod: PodState, room: Room
) -> tuple[list[str], str]:
    """Return the cordoned nodes or devices that could run the pod, and what else is needed.

    If lifting a single cordon suffices for some names, return only these. If the refused pod of a
    gang is unknown, return all cordoned names."""
    shape = explained.shape
    if shape is None:
        there = islice(_cordoned(state, code), NODES_WEIGHED)
        return sorted((name for name, _ in there), key=natural), ""
    return room.once((code.value, pod.shape_key), lambda: _lifting(state, code, shape, room))


def _lifting(state: State, code: RefusalCode, shape: Shape, room: Room) -> tuple[list[str], str]:
    holds = (each for each in _cordoned(state, code) if room.holds(shape, each[1]))
    could = list(islice(holds, NODES_WEIGHED))
    alone = [name for name, node in could if room.fits_uncordoned(shape, node, code, name)]
    if alone:
        return sorted(alone, key=natural), ""
    well = [name for name, node in could if room.fits_on_offer(shape, node)]
    names = sorted(well or (name for name, _ in could), key=natural)
    return names, AND_ELSE if well else AND_END


def _cordoned(state: State, code: RefusalCode) -> Iterator[tuple[str, NodeState]]:
    if code is RefusalCode.DEVICE_CORDONED:
        there = (device for device in state.device_cordons if device in state.node_of_device)
        yield from ((device, state.nodes[state.node_of_device[device]]) for device in there)
        return
    for name, node in state.nodes.items():
        kubernetes = code is RefusalCode.NODE_UNSCHEDULABLE and node.drained
        if kubernetes or (code is RefusalCode.NODE_CORDONED and node.cordons):
            yield name, node


def _holders(node: NodeState, miss: NearMiss, shape: Shape | None, room: Room) -> list[str]:
    """Return the pods on the devices that could satisfy the pod, or on the one that is short."""
    if miss.code not in words.FREED:
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


def _miss_row(
    state: State, miss: NearMiss, shape: Shape | None, room: Room, *, holders: bool
) -> reads.MissRow:
    row = reads.MissRow(
        **fields_of(miss, "node device code needed available"),
        words=words.named(miss.code, shape, never=not holders),
        needed_words=words.amount(miss.code, miss.needed),
        available_words=words.amount(miss.code, miss.available),
        missing=words.missing(miss),
    )
    node = state.nodes.get(miss.node)
    if (
        shape is not None
        and miss.code is RefusalCode.CORES_INSUFFICIENT
        and not any(ask.cores for ask in shape.asks)
    ):  # it requests no cores, but all are in use
        row = structs.replace(row, needed_words="", available_words="", missing="")
    if node is None:
        return row
    held_by = _holders(node, miss, shape, room) if holders else []
    row = structs.replace(row, held_by=tuple(held_by[:HOLDERS_NAMED]), holders=len(held_by))
    if shape is None:
        return row
    if kinds := kind_words(miss.code, shape, node):
        row = structs.replace(row, needed_words=kinds[0], available_words=kinds[1])
    if miss.code is RefusalCode.DEVICE_IN_USE:
        want, have = room.empty_devices(shape, node)
        if have < want:
            needed, available, missing = (
                words.many(count, "device") for count in (want, have, want - have)
            )
            return structs.replace(
                row, needed=want, available=have,
                needed_words=needed, available_words=available, missing=missing,
            )  # fmt: skip
    return row


KINDS_NAMED: Final = 8
TYPES_ALIKE: Final = 0.8  # H200 and H100 are less similar, so neither counts as a typo of the other
_C = RefusalCode
_MODELS: Final[Callable[[Device], str]] = lambda device: device.model  # noqa: E731 - beside the next
_MODES: Final[Callable[[Device], str]] = lambda device: device.mode  # noqa: E731 - in a table


def kind_words(code: RefusalCode, shape: Shape, node: NodeState) -> tuple[str, str] | None:
    """Return what the pod requires and what the node has; None for amounts."""
    if code is _C.TYPE_MISMATCH and words.types(shape):
        return words.types(shape), " or ".join(_there([node], shape, _MODELS))
    if code is _C.MODE_MISMATCH and words.modes(shape):
        return words.modes(shape), " or ".join(_there([node], shape, _MODES))
    if code is _C.INDEX_MISMATCH and shape.devices.indexes:
        has = _there([node], shape, lambda device: str(device.index))
        return words.indexes(shape.devices), f"device indexes {listed(has, KINDS_NAMED)}"
    if code is _C.NODE_LABELS_MISMATCH:
        terms, labels = shape.node.required, node.host.labels
        keys = {*shape.node.selector, *(each.key for term in terms for each in term)}
        have = [f"{key}={labels[key]}" for key in sorted(keys) if key in labels]
        return words.labels(shape), ", ".join(have) or "none of them"
    return None


def fleet_words(state: State, code: RefusalCode, shape: Shape) -> str:
    """Return the types that the fleet has, as in `; this fleet has T4; did you mean T4?`."""
    nodes = state.nodes.values()
    if code is _C.TYPE_MISMATCH:
        models = _there(nodes, shape, _MODELS)
        parts = {part for model in models for part in re.split(r"[\s-]+", model)}
        wrong = (
            name
            for name in shape.devices.use_types
            if not any(type_matches(name, model) for model in models)
        )
        alike = (each for name in wrong for each in near(name, parts, alike=TYPES_ALIKE))
        return f"{_has(models)}{_meant(alike)}"
    if code is _C.MODE_MISMATCH:
        return _has(_there(nodes, shape, _MODES))
    return _labels_meant(state, shape) if code is _C.NODE_LABELS_MISMATCH else ""


def _has(things: list[str]) -> str:
    return f"; this fleet has {listed(things, KINDS_NAMED)}" if things else ""


def _labels_meant(state: State, shape: Shape) -> str:
    """Return labels that are similar to a selected label that no node has."""
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


def _there(nodes: Iterable[NodeState], shape: Shape, what: Callable[[Device], str]) -> list[str]:
    wanted = {ask.family for ask in shape.asks}
    held = (each for node in nodes if node.present for each in node.devices if each.present)
    return sorted({what(h.device) for h in held if h.device.family in wanted}, key=natural)


TAKEN_NAMED = 3  # nodes and devices that are listed; more are counted
_OUT = (RefusalCode.NODE_NOT_READY, RefusalCode.AGENT_SILENT, RefusalCode.NODE_GONE)


def with_taken(
    refused: reads.WhyRefused, state: State, pod: PodState, room: Room
) -> reads.WhyRefused:
    """Add to a refusal the nodes and devices that became unavailable later, cordons first."""
    found = sorted(_cordons(state, pod, room), key=lambda each: natural(each[0]))
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
    """Yield nodes and devices that were cordoned after the pod was refused, by name."""
    shape, refused = pod.submitted.shape, pod.refused_revision
    closed: set[str] = set()
    for name, node in state.nodes.items():
        if node.cordons and node.cordons[0].revision > refused and room.holds(shape, node):
            yield name, reads.OffOffer(node=name, cordons=cordon_answers(node.cordons))
        elif node.cordons:
            closed.add(name)
    for device, cordons in state.device_cordons.items():
        where = state.node_of_device.get(device, "")
        if cordons[0].revision <= refused or not where or where in closed:
            continue
        if room.holds(shape, state.nodes[where]):
            off = reads.OffOffer(node=where, device=device, cordons=cordon_answers(cordons))
            yield f"{device_words(device)} of {where}", off


LIMITED = "a pod over a limit evicts no other pod"


def spared_words(
    state: State, pod: PodState, room: Room, *, nodes: Iterable[NodeState] | None = None
) -> str:
    """Return why no pod is evicted for this pod; with `nodes`, consider only these nodes."""
    if pod.uid in state.nominated or pod.refusal is None:
        return ""
    if Explained(pod.refusal, never=False).of_limits:
        return _within_limit(state, pod, pod.refusal, room) if nodes is None else ""
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
                f"On {node.name}, {many(len(rules), 'pod')} of lower priority {uses} what it "
                f"needs, but {is_} not evicted: {'; '.join(dict.fromkeys(rules))}"
            )
    return ""


def _within_limit(state: State, pod: PodState, refused: PodRefused, room: Room) -> str:
    held = holders(room, state, pod, refused)
    lower = sum(each.submitted.priority < pod.submitted.priority for each in held)
    if not lower or never_within(room, state, pod, refused):
        return ""
    if refused.queue:  # pods of other namespaces are not counted for the user
        return f"Pods of lower priority use what the queue allows, but stay: {LIMITED}"
    uses, stays = ("uses", "stays") if lower == 1 else ("use", "stay")
    return (
        f"{many(lower, 'pod')} of lower priority {uses} what the quota allows, but {stays}: "
        f"{LIMITED}"
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
    """Return the rule that spares the other pod; empty if that pod could be evicted."""
    if not pod.submitted.preempts:
        return "the preemptionPolicy of the pending pod is Never"
    if not other.submitted.evictable:
        return "volcano.sh/preemptable: false forbids it"
    queue = queue_of(state, pod)
    if queue_of(state, other) != queue:
        return f"a pod evicts only pods of its own queue ({queue})"
    return ""
