"""A course of events that only we see: a copy of a state, and the engine itself over it.

Whatever is to be tried happens here as it would in a cluster: facts go through the fold, the engine
decides, what it decides is folded, and whoever is evicted leaves. Invariants: nothing is appended
anywhere; the state that the copy was made of stays as it was; the same facts give the same course.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion.core.placement.engine import DecisionEvent, Engine
from apportion_schemas import Event, PlacementVoided, PodEvicted, PodGone, PodPlaced, PodResized
from apportion_schemas.quantities import Payload

TIME: Final = "2000-01-01T00:00:00.000000Z"
"""Of events where nobody says when they happen, and nothing has happened yet."""
DECISIONS_PER_POD: Final = 4
DECISIONS_MIN: Final = 1_000
"""More decisions than so many for each pod, and so many besides, have no end."""
EVICTED: Final = "evicted for a pod of higher priority"

_CHAINED = (PodPlaced, PlacementVoided, PodEvicted, PodResized)


class CourseFailed(Exception):
    """The fold refuses what was to happen, or the engine never falls silent."""


def copied(state: State) -> State:
    """A state of its own that says the same."""
    return restore(take(state))


def newest(state: State) -> str:
    """The latest time of its pods: who comes in a course has not started before them, and goes
    before them where somebody must go."""
    times = (max(pod.submitted_time, pod.placed_time) for pod in state.pods.values())
    return max(times, default=TIME)


class Course:
    """One course over `state`, which it changes: hand it a copy.

    `time` is that of whatever happens, as in events; else the `newest` of the state. `evicted` are
    the evictions so far, in order."""

    def __init__(self, state: State, *, time: str = "") -> None:
        self.state = state
        self.time = time or newest(state)
        self.engine = Engine(state)
        self.evicted: list[PodEvicted] = []
        self._watching: list[Callable[[Change], None]] = []

    def watch(self, observe: Callable[[Change], None]) -> None:
        """Let `observe` see every change from now on."""
        self._watching.append(observe)

    def apply(self, data: Payload) -> Change:
        """Let it happen. Raises CourseFailed where it contradicts what is so."""
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
        """Decide until nothing is left to say; yields how many events each decision had.

        Raises CourseFailed: it never ends."""
        decisions = 0
        while events := self.decide():
            for data in events:
                self.decided(data)
            for gone in [each for each in events if isinstance(each, PodEvicted)]:
                self.evicted.append(gone)
                self.apply(PodGone(uid=gone.pod, reason=EVICTED))
            decisions += 1
            if decisions > DECISIONS_PER_POD * (len(self.state.pods) + DECISIONS_MIN):
                raise CourseFailed(f"no end after {decisions} decisions")
            yield len(events)

    def decide(self) -> list[DecisionEvent]:
        """The next decision that says something, before it is applied; empty for the last word."""
        while True:
            decision = self.engine.decide()
            if decision.events or not decision.more:
                return decision.events

    def decided(self, data: Payload) -> Change:
        """What the engine decided, as the scheduler writes it."""
        if isinstance(data, PodPlaced):
            devices = (held.device for held in self.state.nodes[data.node].devices)
            data = handed(data, self.state.pods[data.pod].submitted, devices)
        return self.apply(data)
