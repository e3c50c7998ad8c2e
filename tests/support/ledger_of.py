"""An in-memory ledger for tests, with the real fold and the real engine.

    Ledger().report(rack("n1", 2)).submit(pod("p1", ask(4096))).decide()

Invariant: the fold accepts every event, except those passed to `contradict`. After every event,
`invariants.violations` finds no error in the state."""

from typing import Self

from apportion.core.devices.shares import DeviceState
from apportion.core.ledger import fold
from apportion.core.ledger.digest import digest
from apportion.core.ledger.fold import Change
from apportion.core.ledger.invariants import violations
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.engine import EVENTS_MAX, Decision, Engine
from apportion_schemas import (
    Event,
    PlacementVoided,
    PodBound,
    PodGone,
    PodPlaced,
    PodRefused,
    RefusalCode,
    Share,
    SharesAllocated,
)
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided

TIME = "2026-01-01T00:00:00.000000Z"


def event_of(data: Payload, time: str = TIME) -> Event:
    """Return an event with this payload."""
    return Event(id="e", source="test", time=time, data=data)


class Ledger:
    """All events of one test in order, the state that they fold to, and a scheduling engine over
    that state."""

    def __init__(self, *payloads: Payload) -> None:
        self.state = State()
        self.engine = Engine(self.state)
        self.events: list[Payload] = []
        self.time = TIME  # of the next events
        self.play(*payloads)

    def take(self, data: Payload) -> Change:
        """Fold one event, which the fold may accept or refuse. Return the change."""
        self.events.append(data)
        change = fold.apply(self.state, self.state.revision + 1, event_of(data, self.time))
        self.engine.observe(change)
        broken = violations(self.state)
        assert not broken, f"after {data}: {broken}"
        return change

    def play(self, *payloads: Payload) -> Self:
        """Fold events that the fold must accept."""
        for data in payloads:
            change = self.take(data)
            assert not change.refused, f"{data} was refused: {change.refused}"
        return self

    report = submit = play

    def contradict(self, data: Payload) -> str:
        """Fold an event that the fold must refuse, and return the reason.

        Except for a placement, the fold must change nothing but its list of refused events."""
        before = facts(self.state)
        refused = self.take(data).refused
        assert refused, f"{data} was taken"
        assert self.state.refused_events[-1].reason == refused
        assert self.state.refused_events[-1].revision == self.state.revision
        if not isinstance(data, PodPlaced):
            assert facts(self.state) == before
        return refused

    def gone(self, *uids: str) -> Self:
        """Fold the events that end these pods."""
        return self.play(*(PodGone(uid=uid) for uid in uids))

    def bound(self, uid: str) -> Self:
        """Fold the event that binds the pod to its node."""
        at = self.placement(uid)
        return self.play(PodBound(pod=uid, node=at.node, attempt=at.attempt))

    def allocated(self, uid: str) -> Self:
        """Fold an event that allocates the pod's shares to its containers."""
        at = self.placement(uid)
        ids = tuple(share.device for share in at.shares)
        return self.play(SharesAllocated(pod=uid, node=at.node, attempt=at.attempt, devices=ids))

    def voided(self, uid: str, reason: str = "test") -> Self:
        """Fold an event that withdraws the pod's placement."""
        at = self.placement(uid)
        return self.play(PlacementVoided(pod=uid, node=at.node, attempt=at.attempt, reason=reason))

    def decide(self, *, events_max: int = EVENTS_MAX) -> list[Payload]:
        """Let the engine make one decision, fold its events, and return them."""
        events: list[Payload] = [*decided(self.engine, events_max=events_max).events]
        self.play(*events)
        return events

    def settle(self) -> Self:
        """Run decisions and fold their events, until a decision has no events."""
        for _ in range(1000):
            if not self.decide():
                return self
        raise AssertionError("the engine never falls silent")

    def consider(self) -> Decision:
        """Return the decision of a new engine over the state, without folding that decision."""
        return decided(Engine(self.state))

    def pod(self, uid: str) -> PodState:
        """Return the live pod with this uid."""
        return self.state.pods[uid]

    def node(self, name: str = "n1") -> NodeState:
        return self.state.nodes[name]

    def device(self, name: str) -> DeviceState:
        return self.node(self.state.node_of_device[name]).by_id[name]

    def placement(self, uid: str) -> PodPlaced:
        pod = self.state.pods[uid]
        assert pod.placement is not None, f"pod {uid} has no place: {pod.refusal}"
        return placed_of(pod, pod.placement)

    def where(self, uid: str) -> str:
        """Return the pod's node, or "" if the pod is not placed."""
        found = self.state.pods[uid].placement
        return found.node if found else ""

    def shares(self, uid: str) -> tuple[Share, ...]:
        return self.placement(uid).shares

    def devices(self, uid: str) -> list[str]:
        """Return the pod's devices, in the order of its shares."""
        return [share.device for share in self.shares(uid)]

    def refusal(self, uid: str) -> PodRefused:
        found = self.state.pods[uid].refusal
        assert found is not None, f"pod {uid} has not been refused"
        return found

    def reasons(self, uid: str) -> dict[RefusalCode, int]:
        """Return how many nodes each reason in the pod's refusal rules out."""
        return self.refusal(uid).reasons

    def digest(self) -> str:
        """Return the digest of the state, which is equal for equal states."""
        return digest(self.state)


def replayed(*payloads: Payload) -> State:
    """Fold these events without an engine, including refused ones, and return the state."""
    state = State()
    for revision, data in enumerate(payloads, 1):
        fold.apply(state, revision, event_of(data))
    return state


def facts(state: State) -> str:
    """Return a digest of the state. It ignores the revision and the record of refused events."""
    kept = (state.revision, state.refused_count, state.refused_events)
    state.revision, state.refused_count, state.refused_events = 0, 0, []
    try:
        return digest(state)
    finally:
        state.revision, state.refused_count, state.refused_events = kept


def placed(ledger: Ledger) -> set[str]:
    """Return the uids of all placed pods."""
    return {uid for uid, each in ledger.state.pods.items() if each.placement is not None}
