"""Keep the past use of queues up to date with events, if the configuration sets a half-life.

Times of agents' events do not count, because a node's clock may be wrong. Invariant: the state has
past use only if the configuration sets a half-life."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from apportion.core.configuration.checks import half_life_ms
from apportion.core.devices.worth import most_at_once, worth_of
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.past_use import CPU, MEMORY, Held, PastUse, of_device
from apportion.core.ledger.state import PodState, State, queue_of
from apportion_schemas import (
    DevicesRegistered,
    NodeGone,
    NodeObserved,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodResized,
    Share,
)
from apportion_schemas.catalogue import BY_PAYLOAD

_OF_PODS: Final = frozenset((
    PlacementVoided, PodAdopted, PodChanged, PodGone, PodPlaced, PodResized,
))  # fmt: skip
_OF_NODES: Final = frozenset((NodeReported, NodeObserved, DevicesRegistered, NodeGone))


def configure(state: State, time: str) -> None:
    """Start, change or end the measurement, as the state's configuration says."""
    half_life = half_life_ms(state.configuration.queues)
    past = state.past_use
    if not half_life:
        state.past_use = None
    elif past is None:
        state.past_use = PastUse(half_life)
        _go_to(state.past_use, time)
        for uid, held in held_by_pods(state).items():
            state.past_use.hold(uid, held)
    elif past.half_life_ms != half_life:
        _go_to(past, time)
        past.change_half_life(half_life)


def follow(state: State, past: PastUse, change: Change, time: str) -> None:
    """Apply one change of the state, made by an event of this time."""
    kind = type(change.data)
    if BY_PAYLOAD[kind].writer != "agent":
        _go_to(past, time)
    if change.refused:
        return
    if kind in _OF_PODS and change.pod is not None:
        past.hold(change.pod.uid, _held(state, change.pod))
    elif kind in _OF_NODES and change.node is not None:  # its devices may have other sizes
        for pod in change.node.pods.values():
            past.hold(pod.uid, _held(state, pod))
    elif kind is PodGroupObserved or kind is PodGroupGone:
        group = state.groups.get(change.data.group)
        for pod in group.pods.values() if group is not None else ():
            past.hold(pod.uid, _held(state, pod))


def held_by_pods(state: State) -> dict[str, Held]:
    """Return what all placed pods use now, by uid."""
    found = ((pod.uid, _held(state, pod)) for pod in state.pods.values())
    return {uid: held for uid, held in found if held is not None}


def errors(state: State) -> Iterator[str]:
    """Yield a sentence if the rate of a queue is not the sum over its pods."""
    past = state.past_use
    if past is None:
        return
    actual = held_by_pods(state)
    if past.held != actual:
        yield "the recorded use of queues differs from what their pods use now"
    rates: dict[str, Counter[str]] = {}
    for queue, much in actual.values():
        rates.setdefault(queue, Counter()).update(much)
    for queue in sorted({*rates, *past.queues}):
        counted = {of: use.rate for of, use in past.queues.get(queue, {}).items() if use.rate}
        if counted != dict(rates.get(queue, {})):
            yield f"past use of queue {queue}: its rate is not the sum over its pods"


def _go_to(past: PastUse, time: str) -> None:
    moment = micros_of(time)
    if moment is not None:
        past.go_to(moment // 1000)


def _held(state: State, pod: PodState) -> Held | None:
    placed = pod.placement
    if placed is None or state.pods.get(pod.uid) is not pod:
        return None
    by_id, shape = state.nodes[placed.node].by_id, pod.submitted.shape

    def of_share(share: Share) -> Iterator[tuple[str, int]]:
        device = by_id[share.device].device
        much = worth_of(device, share.memory_mib, share.cores)
        yield of_device(device.family, device.model), much

    taken = most_at_once(shape, placed.shares, of_share)
    taken[CPU], taken[MEMORY] = shape.node.cpu_milli, shape.node.memory_mib
    return queue_of(state, pod), +taken
