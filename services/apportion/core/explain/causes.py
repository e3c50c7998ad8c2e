"""The evidence of a refusal: each cause with its cure, and the nodes that nearly fitted.

Counts and amounts are those of the decision; what would help is of the state as it is now, so that
nobody is sent to lift what is lifted. Invariant: a cure names a node or device only if the pod
could be held there.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec import structs

from apportion.core.devices.cordons import cordon_words
from apportion.core.explain import limit_words, words
from apportion.core.explain.answers import CauseRow, MissRow, WhyRefused
from apportion.core.explain.lines import listed
from apportion.core.explain.natural import natural
from apportion.core.explain.room import Explained, Room
from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import NearMiss, RefusalCode, Shape

CORDONS_NAMED = 3
"""So many cordoned nodes or devices are named with who cordoned them."""
NO_CURE = "nothing: none of them could hold it"
"""What would unblock a pod of nodes that are cordoned and too small, or of another kind."""
LIFTED = "nothing: it is lifted since then"
"""The causes are of the decision: nobody is to be sent to lift what is lifted."""
LEFT = "nothing: what is cordoned is not there any more"
CORDONS = (
    RefusalCode.NODE_CORDONED, RefusalCode.DEVICE_CORDONED, RefusalCode.NODE_UNSCHEDULABLE,
)  # fmt: skip
MODELS_NAMED = 8
"""So many models of devices are named for a pod whose type is not there."""
HOLDERS_NAMED = 4
"""So many of the pods are named that hold what a node has too little of."""


def refusal_words(explained: Explained, shape: Shape, *, short: bool = False) -> str:
    """A refusal in one sentence, which begins with that the pod can never fit where it cannot, or
    is the limit that never holds it; `short` for one of a list.
    """
    if explained.limit:
        return explained.limit
    said = words.refusal(explained.refused, shape, short=short, never=explained.never)
    return f"{words.NEVER}: {said}" if explained.never else said


def reason_words(explained: Explained, shape: Shape) -> str:
    """The one thing that keeps the pod out, for a headline: a limit or its gang; else the first
    cause with how many more there are, and the nearest node.
    """
    if limit := _limit_of(explained):
        return limit
    refused, said = explained.refused, refusal_words(explained, shape, short=True)
    near = words.nearest(refused.nearest[0], shape) if refused.nearest else ""
    return f"{'it ' if explained.never else ''}{said}{f'; {near}' if near else ''}"


def _limit_of(explained: Explained) -> str:
    return explained.limit or words.limit_of(explained.refused)


def refused_answer(
    state: State,
    pod: PodState,
    explained: Explained,
    room: Room,
    unbelieved: tuple[str, ...] = (),
) -> WhyRefused:
    """A refusal as the read API shows it: every cause, and of cordons whose they are, the nearest
    misses, and the nodes whose agents are not believed.
    """
    causes, nearest = refused_rows(state, explained, pod, room)
    if not explained.never:
        causes = tuple(_with_people(state, row) for row in causes)
    return WhyRefused(
        revision=pod.refused_revision,
        nodes=explained.refused.nodes,
        causes=causes,
        nearest=nearest,
        never=explained.never,
        limit=_limit_of(explained),
        reason=reason_words(explained, pod.submitted.shape),
        unbelieved=unbelieved,
    )


def refused_rows(
    state: State, explained: Explained, pod: PodState, room: Room
) -> tuple[tuple[CauseRow, ...], tuple[MissRow, ...]]:
    """The causes of a refusal with what would unblock each, and the nodes that nearly fitted."""
    shape, ranked = pod.submitted.shape, words.ranked(explained.refused)
    could = ""
    if not explained.never and not words.FREED.isdisjoint(explained.refused.reasons):
        count = room.once(("could", pod.shape_key), lambda: sum(1 for _ in room.could(shape)))
        could = _could_words(count, explained.refused.nodes)
    causes = tuple(
        _cause_row(state, code, count, explained, pod, room=room, could=could)
        for code, count in ranked
    )
    return causes, tuple(
        _miss_row(state, miss, shape, room, holders=not explained.never)
        for miss in explained.refused.nearest
    )


def _could_words(could: int, of: int) -> str:
    """How many nodes it helps that something ends there; empty where all could hold the pod."""
    return f" (only {could:,} of {words.nodes(of)} could hold it)" if 0 < could < of else ""


def _with_people(state: State, row: CauseRow) -> CauseRow:
    """The cause, with who cordoned what it is about, since when and why; the first few of them."""
    if row.code is RefusalCode.NODE_CORDONED:
        cordons = ((name, node.cordons) for name, node in state.nodes.items() if node.cordons)
    elif row.code is RefusalCode.DEVICE_CORDONED:
        cordons = ((name, each) for name, each in state.device_cordons.items())
    else:
        return row
    found = sorted(cordons)
    if not found:
        return row
    people = [f"{name}: {cordon_words(each)}" for name, each in found[:CORDONS_NAMED]]
    more = len(found) - len(people)
    people += [f"and {more:,} more"] if more > 0 else []
    return structs.replace(row, unblocked_by=f"{row.unblocked_by} ({', '.join(people)})")


def _cause_row(
    state: State, code: RefusalCode, count: int, explained: Explained, pod: PodState,
    *, room: Room, could: str,
) -> CauseRow:  # fmt: skip
    """The cure names a node or device: that of the nearest miss, or the first that is cordoned and
    could hold the pod.

    `could` is said where something is to end.
    """
    limited, shape = code in limit_words.LIMIT_CODES, pod.submitted.shape
    cure = words.cure(code, never=explained.never or (limited and bool(explained.limit)))
    if code is RefusalCode.DEVICE_UNHEALTHY and not explained.never and _unnamed(state, shape):
        cure += ", or pods of another scheduler that hold such devices there end"
    if code is RefusalCode.TYPE_MISMATCH:
        cure += f"; this fleet has {listed(_models(state.nodes.values(), shape), MODELS_NAMED)}"
    near = [miss for miss in explained.refused.nearest if miss.code is code]
    if code in CORDONS and not explained.never:
        cure = _near_cordoned(cure, state, code, near) or room.once(
            (code.value, pod.shape_key), lambda: _uncordoned(cure, state, code, shape, room)
        )
    elif near:
        cure = cure.replace("NODE", near[0].node).replace("DEVICE", near[0].device or "DEVICE")
    cure += could if code in words.FREED else ""
    never = explained.never
    said = _limit_words(explained) if limited else words.named(code, shape, never=never)
    return CauseRow(code=code, words=said, nodes=count, unblocked_by=cure)


def _near_cordoned(cure: str, state: State, code: RefusalCode, near: list[NearMiss]) -> str:
    """The cure for the cordon of a nearest node or device; empty where none of them is cordoned."""
    nearest = {name for miss in near for name in (miss.node, miss.device)}
    found = (
        next((name for name, _ in _cordoned(state, code) if name in nearest), "") if near else ""
    )
    return re.sub("NODE|DEVICE", found, cure) if found else ""


def _uncordoned(cure: str, state: State, code: RefusalCode, shape: Shape, room: Room) -> str:
    """The cure for a cordon: of what is cordoned now and could hold the pod the first by name."""
    cordoned = sorted(_cordoned(state, code), key=lambda each: natural(each[0]))
    if not cordoned:
        stands = code is RefusalCode.DEVICE_CORDONED and state.device_cordons
        return LEFT if stands else LIFTED
    first = next((name for name, node in cordoned if room.holds(shape, node)), "")
    return re.sub("NODE|DEVICE", first, cure) if first else NO_CURE


def _limit_words(explained: Explained) -> str:
    """Which limit it is, and how much of what is lacking."""
    refused = explained.refused
    if explained.limit:
        return explained.limit
    if refused.queue is not None:
        return limit_words.queue(refused.queue)
    return limit_words.quota(refused.quota) if refused.quota is not None else ""


def _unnamed(state: State, shape: Shape) -> bool:
    """Whether another scheduler's pods hold devices of these families, and nobody says which."""
    wanted = {ask.family for ask in shape.asks}
    seen = (node.observed for node in state.nodes.values())
    return any(not wanted.isdisjoint(each.unnamed_families) for each in seen if each is not None)


def _cordoned(state: State, code: RefusalCode) -> Iterator[tuple[str, NodeState]]:
    """The nodes or devices of which this cause may speak, where it is a cordon; with the node."""
    if code is RefusalCode.DEVICE_CORDONED:
        there = (device for device in state.device_cordons if device in state.node_of_device)
        yield from ((device, state.nodes[state.node_of_device[device]]) for device in there)
        return
    for name, node in state.nodes.items():
        kubernetes = code is RefusalCode.NODE_UNSCHEDULABLE and node.drained
        if kubernetes or (code is RefusalCode.NODE_CORDONED and node.cordons):
            yield name, node


def _models(nodes: Iterable[NodeState], shape: Shape) -> list[str]:
    """The models that are there of the families asked for, each once."""
    wanted = {ask.family for ask in shape.asks}
    there = (held for node in nodes if node.present for held in node.devices if held.present)
    return sorted({h.device.model for h in there if h.device.family in wanted}, key=natural)


def _holders(state: State, miss: NearMiss, shape: Shape) -> list[str]:
    """Who holds what the node has too little of: of its devices, or of the one that is short."""
    node = state.nodes.get(miss.node)
    if node is None or miss.code not in words.FREED:
        return []
    alone = miss.device if sum(ask.count for ask in shape.asks) == 1 else ""
    held = (
        pod.full_name
        for pod in node.pods.values()
        if pod.placement is not None
        and any(alone in ("", share.device) for share in pod.placement.shares)
    )
    return sorted(held, key=natural)


def _miss_row(state: State, miss: NearMiss, shape: Shape, room: Room, *, holders: bool) -> MissRow:
    held_by = _holders(state, miss, shape) if holders else []
    needed, available = (words.amount(miss.code, n) for n in (miss.needed, miss.available))
    if miss.code is RefusalCode.TYPE_MISMATCH and miss.node in state.nodes:
        needed = words.types(shape)
        available = " or ".join(_models([state.nodes[miss.node]], shape))
    if miss.code is RefusalCode.NODE_LABELS_MISMATCH and miss.node in state.nodes:
        needed, available = words.labels(shape), _labels(shape, state.nodes[miss.node])
    missing, counts = words.missing(miss), (miss.needed, miss.available)
    if miss.code is RefusalCode.CORES_INSUFFICIENT and not any(ask.cores for ask in shape.asks):
        needed = available = missing = ""  # it asks for none, and others hold all
    if miss.code is RefusalCode.DEVICE_IN_USE and miss.node in state.nodes:
        want, have = room.empty_devices(shape, state.nodes[miss.node])
        if have < want:
            counts = (want, have)
            needed, available, missing = (
                words.many(count, "device") for count in (want, have, want - have)
            )
    return MissRow(
        node=miss.node,
        device=miss.device,
        code=miss.code,
        words=words.named(miss.code, shape, never=not holders),
        needed=counts[0],
        available=counts[1],
        needed_words=needed,
        available_words=available,
        missing=missing,
        held_by=tuple(held_by[:HOLDERS_NAMED]),
        holders=len(held_by),
    )


def _labels(shape: Shape, node: NodeState) -> str:
    """What the node has under the labels that the pod selects by."""
    wanted = {*shape.node.selector, *(each.key for term in shape.node.required for each in term)}
    have = [f"{key}={node.host.labels[key]}" for key in sorted(wanted) if key in node.host.labels]
    return ", ".join(have) or "none of them"
