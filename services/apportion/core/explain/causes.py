"""Explain a refusal: causes, cures, near misses, later cordons, and pods that are not evicted.

Counts and amounts are those of the decision, cures are for the current state. Invariants: cures and
later cordons name only nodes and devices that could run the pod when empty. A rule that spares pods
from eviction is named only for a node where these pods have what is lacking. Only the number of
spared pods is shown, because they may be in any namespace; for a queue not even the number."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import Part, fields_of, joined
from apportion.core.devices.catalogue import type_matches
from apportion.core.devices.cordons import Cordon
from apportion.core.explain.explainer import BeyondLimit, Explained, Explainer, TooFewPlaces
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import (
    HOLDERS_NAMED,
    cause_with_text,
    refused_with_text,
)
from apportion.core.explain.text.event_text import listed
from apportion.core.explain.text.words import device_words, many
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.names import natural, near
from apportion.core.placement.feasibility.evaluator import NODES_WEIGHED, Lifting, Room
from apportion_schemas import Device, NearMiss, PodRefused, RefusalCode, Shape

CORDONS_NAMED = 3  # cordoned nodes or devices that are listed with their author
NO_CURE = "no fix: none of these could ever run the pod"
SHORT_CAUSES = 2  # causes that a short sentence names; of more only the first
LIFTED = "nothing to do: uncordoned since then"  # the causes are those of the decision
LEFT = "nothing to do: the cordoned device has left"
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


def refusal_words(explained: Explained, *, short: bool = False) -> str:
    """Return a refusal as one sentence, with "can never fit" if so; `short` is for lists."""
    return refusal_causes(explained, short=short).sentence


def refusal_causes(
    explained: Explained, *, short: bool = False, lead: str = f"{words.NEVER}: "
) -> words.Causes:
    """Return `refusal_words` as lead and clauses; `lead` replaces its "can never fit"."""
    if limit := limit_words(explained):
        return words.Causes("", (limit,))
    refused, never = explained.refused, explained.never
    found = words.refusal_causes(refused, explained.shape, short=short, never=never)
    before = lead if never else whose(refused, explained.shape)
    return words.Causes(before + found.lead, found.clauses)


def because(explained: Explained, *, short: bool = False) -> str:
    """Return the refusal as one sentence that never begins with "can never fit"."""
    return refusal_causes(explained, short=short, lead="").sentence


def cause_words(explained: Explained) -> str:
    """Return the refusal in a few words: the limit, or the first cause, as of the current state."""
    if limit := limit_words(explained):
        return limit
    said = words.cause(explained.refused, explained.shape, never=explained.never)
    return (
        f"{words.NEVER_LISTED}: {said}"
        if explained.never
        else whose(explained.refused, explained.shape) + said
    )


def whose(refused: PodRefused, shape: Shape | None) -> str:
    """Return "for one pod of its gang, " if another pod of the gang may be meant; else empty."""
    return "for one pod of its gang, " if shape is None and refused.gang is None else ""


def reason_words(explained: Explained) -> str:
    """Return the main reason: a limit, or the gang, or the first cause and the nearest node."""
    return joined(reason_parts(explained))


def reason_parts(explained: Explained) -> tuple[str | Part, ...]:
    """Return `reason_words` in parts, with names marked; the first may be "can never fit"."""
    if limit := _limit_of(explained):
        return (limit,)
    refused, said = explained.refused, because(explained, short=True)
    near = words.nearest(refused.nearest[0], explained.shape) if refused.nearest else ()
    never = (words.IT_NEVER,) if explained.never else ()
    return (*never, said, *(("; ", *near) if near else ()))


def _limit_of(explained: Explained) -> str:
    return limit_words(explained) or words.limit_of(explained.refused)


def limit_words(explained: Explained) -> str:
    """Return a sentence about the limit that is too small for the pod; empty if none is."""
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
        refused = words.without_gone(refused)
        causes = words.ranked(refused)
        first = causes[0] if len(causes) > SHORT_CAUSES else tuple(causes)
        codes = (None, *(code for code, _ in causes))
        wished = tuple(words.wished(code, shape) for code in codes) if shape is not None else ()
        shown = refused.nodes, first, len(causes), wished
    return gang, limits, explained.never, shape is None, shown


def causes_say_all(explained: Explained) -> bool:
    """Return True if the refusal has no cause besides those counted per node."""
    if explained.never and not explained.limit:
        return True
    refused = explained.refused
    return not (_limit_of(explained) or whose(refused, explained.shape)) and refused.nodes > 0


def refused_answer(
    explainer: Explainer, pod: PodState, explained: Explained, unbelieved: tuple[str, ...] = ()
) -> reads.WhyRefused:
    """Return the answer for a refusal: causes, cordons with authors, near misses.

    `unbelieved` are nodes that may fit, but whose agents' reports are refused."""
    causes, nearest = refused_rows(explainer, pod, explained)
    if not explained.never:
        causes = tuple(_with_people(explainer, pod, explained, row) for row in causes)
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
    explainer: Explainer, pod: PodState, explained: Explained
) -> tuple[tuple[reads.CauseRow, ...], tuple[reads.MissRow, ...]]:
    """Return the causes of a refusal, each with its cure, and the near misses."""
    shape, ranked = explained.shape, words.ranked(explained.refused)
    could = ""
    if (
        shape is not None
        and not explained.never
        and not words.FREED.isdisjoint(explained.refused.reasons)
    ):
        count = explainer.room.could_count(pod)
        of = explained.refused.nodes
        if 0 < 2 * count <= of:  # if most nodes could take the pod, the count is no help
            could = f" (only {count:,} of {words.nodes(of)} could ever run the pod)"
    causes = tuple(_cause_row(explainer, pod, explained, cause, could) for cause in ranked)
    return causes, tuple(
        _miss_row(explainer, miss, shape, holders=not explained.never)
        for miss in explained.refused.nearest
    )


def _with_people(
    explainer: Explainer, pod: PodState, explained: Explained, row: reads.CauseRow
) -> reads.CauseRow:
    """Add to a cause the cordons, with authors, of the first nodes or devices that would fit."""
    if row.code not in (RefusalCode.NODE_CORDONED, RefusalCode.DEVICE_CORDONED):
        return row
    state, (names, _) = explainer.state, _liftable(explainer, pod, explained, row.code)
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
    explainer: Explainer, pod: PodState, explained: Explained,
    cause: tuple[RefusalCode, int], could: str,
) -> reads.CauseRow:  # fmt: skip
    code, count = cause
    limited, shape, refused = code in words.LIMIT_CODES, explained.shape, explained.refused
    command = ""
    if code in CORDONS and not explained.never:
        liftable = _liftable(explainer, pod, explained, code)
        command, cure = _uncordoned(explainer, code, refused, liftable)
    else:
        never = explained.never or (limited and bool(explained.limit))
        cure = words.cure(code, never=never, **_nearest(code, refused))
    if shape is not None:
        cure += _besides(explainer, pod, explained, code)
    held = explainer.holders(pod, refused) if limited and not explained.limit else []
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
    """Return the names to insert into a fix: the nearest node with this code, and its device."""
    found = next((miss for miss in refused.nearest if miss.code is code), None)
    names = {} if found is None else {"node": found.node, "device": found.device}
    return {key: name for key, name in names.items() if name}


def _besides(explainer: Explainer, pod: PodState, explained: Explained, code: RefusalCode) -> str:
    state, shape, said = explainer.state, pod.submitted.shape, ""
    ails = code is RefusalCode.DEVICE_UNHEALTHY and not explained.never
    wanted = {ask.family for ask in shape.asks}
    seen = (node.observed for node in state.nodes.values())
    unnamed = (each.unnamed_families for each in seen if each is not None)
    if ails and not all(map(wanted.isdisjoint, unnamed)):
        said = ", or for pods of another scheduler to release such devices there"
    said += fleet_words(state, code, shape)
    if not ails:
        return said
    return said if explainer.room.recovers(pod) else said + AND_END


def _uncordoned(
    explainer: Explainer, code: RefusalCode, refused: PodRefused, liftable: tuple[list[str], str]
) -> tuple[str, str]:
    """Return how to end a cordon: the command, and what else must end, as text."""
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


def _liftable(
    explainer: Explainer, pod: PodState, explained: Explained, code: RefusalCode
) -> tuple[list[str], str]:
    """Return the cordoned nodes or devices that could run the pod, and what else must end.

    If the refused pod of a gang is unknown, return everything that is cordoned."""
    room, lifting = explainer.room, Lifting.SUFFICES
    if explained.shape is None:
        names = [name for name, _ in islice(room.cordoned(code), NODES_WEIGHED)]
    else:
        names, lifting = room.liftable(pod, code)
    return sorted(names, key=natural), BESIDES[lifting]


def _holders(node: NodeState, miss: NearMiss, shape: Shape | None, room: Room) -> list[str]:
    """Return the names of pods on the node whose devices the pod needs."""
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
    explainer: Explainer, miss: NearMiss, shape: Shape | None, *, holders: bool
) -> reads.MissRow:
    row = reads.MissRow(
        **fields_of(miss, "node device code needed available"),
        words=words.named(miss.code, shape, never=not holders),
        needed_words=words.amount(miss.code, miss.needed),
        available_words=words.amount(miss.code, miss.available),
        missing=words.missing(miss),
    )
    node = explainer.state.nodes.get(miss.node)
    if (
        shape is not None
        and miss.code is RefusalCode.CORES_INSUFFICIENT
        and not any(ask.cores for ask in shape.asks)
    ):  # it requests no cores, but all are in use
        row = structs.replace(row, needed_words="", available_words="", missing="")
    if node is None:
        return row
    held_by = _holders(node, miss, shape, explainer.room) if holders else []
    row = structs.replace(row, held_by=tuple(held_by[:HOLDERS_NAMED]), holders=len(held_by))
    if shape is None:
        return row
    if kinds := kind_words(miss.code, shape, node):
        row = structs.replace(row, needed_words=kinds[0], available_words=kinds[1])
    if miss.code is RefusalCode.DEVICE_IN_USE:
        want, have = explainer.room.empty_devices(shape, node)
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
    """Return what the pod requires and what the node has, as text; None for amounts."""
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
    """Return what the fleet has instead, as in `; this fleet has T4; did you mean T4?`."""
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
    """Return labels of nodes that are similar to a required label that no node has."""
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


def with_taken(explainer: Explainer, pod: PodState, refused: reads.WhyRefused) -> reads.WhyRefused:
    """Add to a refusal the nodes and devices that became unavailable after it, cordons first."""
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
    """Yield the nodes and devices cordoned after the pod was refused that could run it, by name."""
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
    explainer: Explainer, pod: PodState, *, nodes: Iterable[NodeState] | None = None
) -> str:
    """Return why no pod is evicted for this pod; `nodes` restricts it to these nodes."""
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
                f"On {node.name}, {many(len(rules), 'pod')} of lower priority {uses} what it "
                f"needs, but {is_} not evicted: {'; '.join(dict.fromkeys(rules))}"
            )
    return ""


def _within_limit(explainer: Explainer, pod: PodState, refused: PodRefused) -> str:
    held = explainer.holders(pod, refused)
    lower = sum(each.submitted.priority < pod.submitted.priority for each in held)
    if not lower or explainer.never_within(pod, refused):
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
    """Return the rule by which `other` is not evicted for the pod; empty if none forbids it."""
    if not pod.submitted.preempts:
        return "the preemptionPolicy of the pending pod is Never"
    if not other.submitted.evictable:
        return "volcano.sh/preemptable: false forbids it"
    queue = queue_of(state, pod)
    if queue_of(state, other) != queue:
        return f"a pod evicts only pods of its own queue ({queue})"
    return ""
