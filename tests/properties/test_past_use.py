"""Properties of past use: it equals a slow reference model, and restarts do not change it."""

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.ledger.fold import apply
from apportion.core.ledger.moments import text_of
from apportion.core.ledger.past_use import PERIODS, PastUse
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion_schemas import Configuration, ConfigurationChanged, PodGone
from apportion_schemas.configuration import QueuesConfiguration
from apportion_schemas.quantities import Payload
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger, event_of
from tests.support.pods import ask, pod

HALF_LIFE_MS = 3_600_000
PERIOD_MS = HALF_LIFE_MS // PERIODS
BEGIN_MS = 1_767_225_600_000
QUEUES = ("a", "b")
SIZE_MIB = 10_000
Action = tuple[int, str, int]  # milliseconds since the last one, a queue, MiB; 0: a pod ends
gaps = st.one_of(st.integers(0, 2_000), st.integers(0, 10 * HALF_LIFE_MS))
actions = st.lists(
    st.tuples(gaps, st.sampled_from(QUEUES), st.sampled_from((0, 0, 1_000, 2_500, 9_999))),
    max_size=24,
)


class Model:
    """A reference model of past use: a list of all intervals in which a queue's use is constant."""

    def __init__(self) -> None:
        self.stretches: list[tuple[str, int, int, int]] = []

    def sum_at(self, queue: str, moment: int) -> float:
        """Return the queue's use before the period of `moment`. Older periods count less."""
        now, found = moment // PERIOD_MS, 0.0
        for name, rate, start, end in self.stretches:
            at = start
            while name == queue and at < end:
                period = at // PERIOD_MS
                until = min((period + 1) * PERIOD_MS, end)
                if period < now:
                    found += rate * (until - at) * 0.5 ** ((now - period) / PERIODS)
                at = until
        return found


def played(
    steps: list[Action], later: int = 0
) -> tuple[list[tuple[Payload, str]], Model, Ledger, int]:
    """Play the steps, then let the remaining pods run for `later` milliseconds.

    Return all events with their times, the model, the ledger and the time of the end."""
    ledger, model, now = Ledger(), Model(), BEGIN_MS
    events: list[tuple[Payload, str]] = []

    def play(*payloads: Payload) -> None:
        before = len(ledger.events)
        ledger.time = text_of(now * 1000)
        ledger.play(*payloads).settle()
        events.extend((each, ledger.time) for each in ledger.events[before:])

    queues = QueuesConfiguration(usage_half_life="1h")
    play(rack("n1", 4, memory_mib=SIZE_MIB))
    play(ConfigurationChanged(by="ann", configuration=Configuration(queues=queues)))
    for number, (gap, queue, memory) in enumerate([*steps, (later, "a", 0)]):
        placed = [each for each in ledger.state.pods.values() if each.placement is not None]
        for each in placed:
            (wanted,) = each.submitted.shape.asks
            worth = max(-(-(wanted.memory_mib or 0) * 1000 // SIZE_MIB), 100)  # of ten slots
            model.stretches.append((each.submitted.queue, worth, now, now + gap))
        now += gap
        if memory:
            play(pod(f"p{number}", ask(memory), queue=queue))
        elif ledger.state.pods and number < len(steps):
            play(PodGone(uid=next(iter(ledger.state.pods))))
    return events, model, ledger, now


def devices(past: PastUse | None, queue: str, period: int) -> int:
    assert past is not None
    return sum(much for of, much in past.sums(queue, period).items() if "/" in of)


@given(actions, st.integers(0, 3 * HALF_LIFE_MS))
def test_past_use_is_the_sum_of_all_use_by_age(steps: list[Action], later: int) -> None:
    """The past use of a queue equals its use in all intervals, each weighted by the interval's age.

    The two may differ by rounding, and by the small past use of a queue that was forgotten."""
    _, model, ledger, now = played(steps, later)
    for queue in QUEUES:
        found = devices(ledger.state.past_use, queue, now // PERIOD_MS)
        expected = model.sum_at(queue, now)
        assert isclose(found, expected, rel_tol=1e-6, abs_tol=60_000_100), queue


@given(actions, st.data())
def test_past_use_is_the_same_after_any_restart(steps: list[Action], data: st.DataObject) -> None:
    """A reader that restarts from snapshots at any revisions has the same past use."""
    events, _, ledger, _ = played(steps)
    state = State()
    for revision, (payload, time) in enumerate(events, 1):
        if data.draw(st.booleans()):
            state = restore(take(state))
        change = apply(state, revision, event_of(payload, time))
        assert not change.refused
    assert state.past_use == ledger.state.past_use
