"""Simulate changes: the fold and the engine run over a copy of a state.

Events are folded, the engine decides, its decisions are folded, and evicted pods end. Invariants:
nothing is appended to a ledger; the copied state is unchanged; equal events give equal results."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion.core.placement.engine import DecisionEvent, Engine
from apportion.runtime.process.clock import rfc3339_of
from apportion_schemas import Event, PlacementVoided, PodEvicted, PodGone, PodPlaced, PodResized
from apportion_schemas.quantities import Payload

TIME: Final = "2000-01-01T00:00:00.000000Z"  # of events without a given time, in an empty state
# The limit is DECISIONS_PER_POD for each pod, counting DECISIONS_MIN pods more.
LATER_S: Final = 0.001  # so that a time in seconds is not before the engine's microseconds
DECISIONS_PER_POD: Final = 4
DECISIONS_MIN: Final = 1_000
EVICTED: Final = "evicted for a pod of higher priority"

_CHAINED = (PodPlaced, PlacementVoided, PodEvicted, PodResized)


class CourseFailed(Exception):
    """Raised if the fold refuses a simulated event, or if the engine never finishes."""


def copied(state: State) -> State:
    """Return an independent copy of the state."""
    return restore(take(state))


def newest(state: State) -> str:
    """Return the time of the latest submission or placement, at which to submit further pods."""
    times = (max(pod.submitted_time, pod.placed_time) for pod in state.pods.values())
    return max(times, default=TIME)


class Course:
    """A simulation that changes `state`, so pass a copy of the state.

    `evicted` has the evictions so far, in order. `time` is the time of the simulated events."""

    def __init__(self, state: State, *, time: str = "") -> None:
        self.state = state
        self.time = time or newest(state)
        self.engine = Engine(state)
        self.evicted: list[PodEvicted] = []
        self._watching: list[Callable[[Change], None]] = []
        self._passes = False

    def watch(self, observe: Callable[[Change], None]) -> None:
        """Call `observe` with every later change."""
        self._watching.append(observe)

    def until(self, at_s: float) -> None:
        """Let the time pass until `at_s`, in seconds since 1970."""
        self.time = rfc3339_of(at_s)
        self._passes = True

    @property
    def due_s(self) -> float:
        """Return when the engine decides without an event, in seconds since 1970, or infinity."""
        due = self.engine.held_until
        return due / SECOND + LATER_S if due else math.inf

    def apply(self, data: Payload) -> Change:
        """Apply an event. Raises CourseFailed if the event contradicts the state."""
        if isinstance(data, _CHAINED):
            node = self.state.nodes.get(data.node)
            data = structs.replace(data, previous=node.chain if node is not None else "")
        event = Event(id="lab", source="lab", time=self.time, data=data)
        change = fold.apply(self.state, self.state.revision + 1, event)
        if change.refused:
            raise CourseFailed(change.refused)
        self.engine.observe(change)
        for observe in self._watching:
            observe(change)
        return change

    def settle(self) -> Iterator[int]:
        """Let the engine decide until it is done. Yield the number of events of each decision.

        Raises CourseFailed if decisions never end."""
        decisions = 0
        while events := self.decide():
            for data in events:
                self.decided(data)
            for gone in [each for each in events if isinstance(each, PodEvicted)]:
                self.evicted.append(gone)
                self.apply(PodGone(uid=gone.pod, reason=EVICTED))
            decisions += 1
            if decisions > DECISIONS_PER_POD * (len(self.state.pods) + DECISIONS_MIN):
                raise CourseFailed(f"not finished after {decisions} decisions")
            yield len(events)

    def decide(self) -> list[DecisionEvent]:
        """Return the next decision's events without applying them; empty if nothing is left."""
        while True:
            if self._passes and self.engine.needs_time:
                self.engine.tell_time(micros_of(self.time) or 0)
            decision = self.engine.decide()
            if decision.events or not decision.more:
                return decision.events

    def decided(self, data: Payload) -> Change:
        """Apply an event that the engine decided.

        As a scheduler does, first add the container settings to a placement."""
        if isinstance(data, PodPlaced):
            devices = (held.device for held in self.state.nodes[data.node].devices)
            data = handed(data, self.state.pods[data.pod].submitted, devices)
        return self.apply(data)
