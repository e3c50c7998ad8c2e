"""Tests of forecasts of when pending pods start, based on decisions of the real engine."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.answers.reads import StartForecast, StartUnknown
from apportion.core.explain.text.answer_text import start_band, start_seconds, start_words
from apportion.core.explain.text.vocabulary import START_JUDGED_LEAST
from apportion.core.explain.why import why
from apportion.core.forecast.durations import Durations
from apportion.core.forecast.line import Line
from apportion.core.forecast.pending import Kind, Pod
from apportion.core.forecast.running import MAX, Running
from apportion.core.forecast.waits import STARTS_LEAST, Band, Situation, Waits
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.state import NodeState, State
from apportion_schemas import DeviceConstraints, PodChanged, PodEvicted, PodGone, QueueObserved
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import TIME, Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

SUBMITTED = TIME.replace(".000000", "")
RUN_S = 600.0
GAP_S = 60.0  # from the start of a pod to the submission of the next one


class Followed:
    """A ledger, and a forecast (`Line`) that follows its events at times that the test sets."""

    def __init__(self, *payloads: Payload) -> None:
        self.ledger = Ledger(*payloads)
        self.line = Line(self.ledger.state)
        self.now_s = 1_000_000.0

    def play(self, *payloads: Payload, at_s: float | None = None) -> None:
        """Fold the events, let the engine decide, and pass all new events to the forecast."""
        self.now_s = self.now_s if at_s is None else at_s
        seen = len(self.ledger.events)
        self.ledger.play(*payloads).settle()
        for data in self.ledger.events[seen:]:
            self.line.observe(data, self.now_s)

    def forecast(self, uid: str) -> StartForecast:
        """Return the forecast for a pending pod."""
        found = self.line.forecast(self.ledger.pod(uid))
        assert found is not None
        return found

    def relay(self, rounds: int) -> str:
        """Let pods use the only device in turn, and submit each while the previous one runs.

        Return the uid of the last pod, which is pending."""
        self.play(pod("p0", cards()))
        for number in range(rounds):
            begin_s = self.now_s
            self.play(pod(f"p{number + 1}", cards()), at_s=begin_s + GAP_S)
            if number < rounds - 1:
                self.play(PodGone(uid=f"p{number}"), at_s=begin_s + RUN_S)
        return f"p{rounds}"


def test_start_is_forecast_from_similar_waits() -> None:
    """After enough similar waits, the forecast contains the time when the running pod will end."""
    followed = Followed(rack("n1", 1))
    last = followed.relay(STARTS_LEAST + 10)
    found = followed.forecast(last)
    earliest, median, latest = start_seconds(found, followed.now_s)
    assert found.unknown == ""
    assert earliest <= median <= latest
    assert earliest - 60 <= RUN_S - GAP_S <= latest + 60
    assert found.probability == pytest.approx(0.8)
    assert found.similar > 0
    assert found.within == found.judged > 0


def test_no_forecast_from_little_history() -> None:
    """If too few starts are known, the answer has a reason code instead of a forecast."""
    followed = Followed(rack("n1", 1))
    found = followed.forecast(followed.relay(STARTS_LEAST - 2))
    assert (found.unknown, found.earliest, found.median, found.similar) == (
        "little-history", "", "", 0
    )  # fmt: skip


def test_placed_pods_have_no_forecast() -> None:
    """A pod that is placed has no forecast."""
    followed = Followed(rack("n1", 1))
    followed.play(pod("a", cards()))
    assert followed.line.forecast(followed.ledger.pod("a")) is None


def test_no_forecast_for_what_time_does_not_bring() -> None:
    """A pod that never fits, has scheduling gates or lacks gang members has no forecast."""
    followed = Followed(rack("n1", 1))
    followed.relay(STARTS_LEAST + 5)
    followed.play(
        pod("huge", cards(9)),
        pod("gated", cards(), gates=("example.com/gate",)),
        gang(min_available=2),
        member("alone", cards()),
    )
    assert followed.forecast("gated").unknown == "gated"
    assert followed.forecast("alone").unknown == "not-ready"
    start = why(
        followed.ledger.state, followed.ledger.pod("huge"), start=followed.forecast("huge")
    ).start
    assert start is not None
    assert (start.unknown, start.median, start.similar) == ("never", "", 0)


def test_no_forecast_while_nodes_are_closed() -> None:
    """While all nodes are cordoned or not ready, pending pods have no forecast."""
    followed = Followed(rack("n1", 1), observed("n1"))
    last = followed.relay(STARTS_LEAST + 5)
    assert followed.forecast(last).unknown == ""
    for closed in (observed("n1", unschedulable=True), observed("n1", ready=False)):
        followed.play(closed)
        assert followed.forecast(last).unknown == "nodes-closed"


def test_pods_that_cannot_start_are_not_ahead() -> None:
    """A pod that fits no node, or belongs to another scheduler, does not count as ahead of other
    pods, even if its priority is higher. When it ends, their forecasts do not change."""
    followed = Followed(rack("n1", 1))
    followed.play(pod("runs", cards()), pod("b", cards()))
    before = followed.line.situation("b")
    assert before
    cannot = (
        pod(
            "never",
            priority=9,
            shape=shape(cards(), devices=DeviceConstraints(use_types=("H100",))),
        ),
        pod("elsewhere", cards(), priority=9, chooser="default-scheduler"),
    )
    for each in cannot:
        followed.play(each)
        assert followed.line.situation("b") == before
        followed.play(PodGone(uid=each.uid))
        assert followed.line.situation("b") == before


class Noted(Waits):
    """Counts how often the situation of a pending pod is recorded."""

    count = 0

    def note(self, situation: Situation, now_s: float, found: Band | StartUnknown) -> int:
        self.count += 1
        return super().note(situation, now_s, found)


def test_skipped_refusal_is_not_made_up_for() -> None:
    """Of several pods that are refused in one second, only one is ever recorded."""
    followed = Followed(rack("n1", 1))
    noted = followed.line.waits = Noted()
    followed.play(pod("a", cards()), pod("b", cards()), pod("c", cards()))
    for uid in ("b", "c"):
        followed.line.observe(followed.ledger.refusal(uid), followed.now_s + 100)
    assert noted.count == 1


def test_clock_of_a_node_does_not_count() -> None:
    """A forecast ignores times of agents' events. No event counts as later than the reader's
    clock."""
    ledger = Ledger(rack("n1", 1)).play(pod("a", cards())).settle().play(pod("b", cards())).settle()
    line = Line(ledger.state, clock_s=lambda: 1_800_000_000.0)
    fast_s = 1_900_000_000.0
    line.observe(rack("n1", 1), 1_790_000_000.0)
    waiting = ledger.pod("b")
    assert line.forecast(waiting) == StartForecast(as_of=SUBMITTED, unknown="little-history")
    line.observe(ledger.refusal("b"), fast_s)
    found = line.forecast(waiting)
    assert found
    assert found.as_of == found.since == text_of(1_800_000_000 * SECOND)


def test_ages_from_the_state() -> None:
    """A forecast that starts from a state knows since when each pod is pending."""
    followed = Followed(rack("n1", 1))
    for number, uid in enumerate(("runs", "old", "new")):
        followed.ledger.time = text_of((1_800_000_000 + number * 1_000) * SECOND)
        followed.play(pod(uid, cards()), at_s=1_800_000_000.0 + number * 1_000)
    for line in (followed.line, Line(followed.ledger.state)):
        found = line.situation("new")
        assert found
        assert found.oldest_s == 1_000


class Counted(dict[str, NodeState]):
    """A dictionary of nodes that counts how often all nodes are read."""

    reads = 0

    def values(self) -> Any:
        """Count the call, and return all nodes."""
        self.reads += 1
        return super().values()


def test_unknown_families_cost_one_look() -> None:
    """The forecast reads all nodes only for a pod that requests memory, because it then needs the
    memory size of a device. If no node has the family, it reads them again only after a report of
    a node."""
    state = State()
    nodes = Counted()
    state.nodes = nodes
    line = Line(state)
    for number in range(5):
        line.observe(pod(f"whole{number}", cards()), 1.0)
    assert nodes.reads == 0
    for number in range(5):
        line.observe(pod(f"part{number}", ask(1_000, family="absent")), 1.0)
    assert nodes.reads == 1
    line.observe(rack("n1"), 1.0)
    line.observe(pod("new", ask(1_000, family="absent")), 1.0)
    assert nodes.reads == 2


def test_few_pods_among_many_others_count() -> None:
    """If too many pods run, a forecast examines only a sample of those with suitable devices."""
    running = Running(Durations())
    kinds = {model: Kind("nvidia", (model,)) for model in ("T4", "H100")}
    for number in range(MAX + 100):
        model = "H100" if number == 1 else "T4"
        each = Pod(
            "job", "default", kinds[model], 1.0, 0, (("all",),), 0.0, gated=False, elsewhere=False
        )
        running.start(f"p{number}", each, [model], 0.0)
    released = {
        model: running.released(running.fitting(kind), 60.0)[-1] for model, kind in kinds.items()
    }
    assert released["H100"] == pytest.approx(1.0, rel=0.1)
    assert released["T4"] == pytest.approx(MAX + 99, rel=0.1)


@pytest.mark.parametrize("again", [False, True], ids=["followed", "met"])
def test_a_deadline_brings_the_expected_start_forward(*, again: bool) -> None:
    """A pod that waits for a running pod is expected to start when that pod's deadline is over,
    also if the forecast begins with the running pod's state."""
    expected = []
    for deadline_s in (0, 10_000):
        followed = Followed(rack("n1", 1))
        for uid, at_s in (("runs", 1_000_000), ("waits", 1_009_900)):
            followed.ledger.time = text_of(at_s * SECOND)
            longest_s = deadline_s if uid == "runs" else 0
            followed.play(pod(uid, cards(), deadline_s=longest_s), at_s=at_s)
        line = followed.line
        if again:
            line = Line(followed.ledger.state)
            line.observe(rack("n2", 0), 1_009_900.0)
        found = line.situation("waits")
        assert found is not None
        expected.append(found.expected_s)
    assert 10 * expected[1] < expected[0]  # the deadline is 100 s from now


def test_gated_pods_join_the_line_later() -> None:
    """A pod with scheduling gates is ahead of no other pod until its gates are removed."""
    followed = Followed(rack("n1", 1))
    followed.play(pod("runs", cards()), pod("gated", cards(), gates=("g",)), pod("b", cards()))
    before = followed.line.situation("b")
    assert followed.line.situation("gated") is None
    followed.play(PodChanged(uid="gated"))
    after = followed.line.situation("b")
    assert before
    assert after
    assert before.expected_s < after.expected_s
    followed.play(PodChanged(uid="gated", gates=("g",)))
    assert followed.line.situation("gated") is None
    assert followed.line.situation("b") == before


def test_queue_below_its_entitlement_comes_first() -> None:
    """Pods of a queue with more use per weight are not ahead of pods of an idle queue."""
    queues = (QueueObserved(queue="a", weight=1), QueueObserved(queue="b", weight=1))
    followed = Followed(rack("n1", 4), *queues)
    followed.play(*(pod(f"a{each}", cards(), queue="a") for each in range(12)))
    followed.play(pod("mine", cards(), queue="b"))
    followed.play(pod("late", cards(), queue="a"))
    mine, late = followed.line.situation("mine"), followed.line.situation("late")
    assert mine
    assert late
    assert mine.expected_s < late.expected_s


def test_evicted_runs_are_no_durations() -> None:
    """If a pod is evicted, the time that it ran is not learnt as a duration."""
    followed = Followed(rack("n1", 1))
    followed.play(pod("a", cards()))
    at = followed.ledger.placement("a")
    keys = ("all",)
    evicted = PodEvicted(
        pod="a", namespace="default", name="a", attempt=at.attempt, node=at.node, priority=0,
        beneficiary="b", beneficiary_name="default/b", beneficiary_priority=1, nominated=at.node,
        reason="preempted",
    )  # fmt: skip
    followed.line.observe(evicted, followed.now_s)
    followed.line.observe(PodGone(uid="a"), followed.now_s + RUN_S)
    assert followed.line.durations.like(keys).size == 0


def test_question_changes_nothing() -> None:
    """A forecast does not depend on how often forecasts were requested before."""
    quiet, asked = Followed(rack("n1", 1)), Followed(rack("n1", 1))
    for number in range(STARTS_LEAST + 5):
        for each in (quiet, asked):
            each.play(pod(f"p{number}", cards()), at_s=each.now_s + GAP_S)
            if number:
                each.play(PodGone(uid=f"p{number - 1}"), at_s=each.now_s + 7 * number)
        asked.play(pod("question", cards()))
        asked.forecast("question")
        asked.line.forecast(asked.ledger.pod("question"))
        for each in (quiet, asked):
            each.play(pod("question", cards()) if each is quiet else PodChanged(uid="question"))
            each.play(PodGone(uid="question"))
    for each in (quiet, asked):
        each.play(pod("last", cards()))
    assert quiet.forecast("last") == asked.forecast("last")


def test_sentences(golden: Golden) -> None:
    """Every forecast, and every reason for a missing forecast, is shown as a sentence."""
    at = "2026-05-01T12:00:00Z"
    band = StartForecast(
        as_of=at, earliest="2026-05-01T12:00:40Z", median="2026-05-01T12:45:00Z",
        latest="2026-05-01T14:40:00Z", probability=0.8, similar=34, judged=200, within=158,
    )  # fmt: skip
    limit = StartForecast(as_of=at, unknown="limit")
    little = StartForecast(as_of=at, unknown="little-history")
    never = StartForecast(as_of=at, unknown="never")
    stuck = StartForecast(as_of=at, unknown="few-started")
    assert start_words(never, 0.0) == ""
    now_s = (micros_of(at) or 0) / SECOND
    alike = structs.replace(
        band, earliest=band.median, latest=band.median, judged=START_JUDGED_LEAST - 1
    )
    golden(
        {
            "band": start_words(band, now_s),
            "clock behind the ledger": start_words(band, 0.0),
            "20 min later": start_words(band, now_s + 1_200),
            "after the median": start_words(band, now_s + 3_600),
            "overdue": start_words(band, now_s + 10_000),
            "narrow band, few judged forecasts": start_words(alike, now_s),
            "limit": start_words(limit, now_s),
            "few": start_words(little, now_s),
            "stuck": start_words(stuck, now_s),
            "in lists": "; ".join(start_band(band, now_s + each) for each in (0, 1_200, 10_000)),
        }
    )


def test_times_are_from_now() -> None:
    """The displayed time until a start shrinks as time passes, and may become negative."""
    at = "2026-05-01T12:00:00Z"
    band = StartForecast(as_of=at, earliest=at, median="2026-05-01T12:01:00Z",
                         latest="2026-05-01T12:02:00Z")  # fmt: skip
    now_s = (micros_of(at) or 0) / SECOND
    assert start_seconds(band, now_s) == (0, 60, 120)
    assert start_seconds(band, now_s + 90) == (-90, -30, 30)
    assert start_seconds(band, now_s - 90) == (0, 60, 120)


def test_wait_since_the_first_refusal_counts() -> None:
    """A forecast takes into account how long the pod has waited since its first refusal."""
    followed = Followed(rack("n1", 1))
    last = followed.relay(STARTS_LEAST + 10)
    followed.play(pod("another", cards(9)), at_s=followed.now_s + 300)
    again = followed.ledger.pod(last).refusal
    assert again
    followed.line.observe(again, followed.now_s)
    here = followed.line.situation(last)
    assert here
    band, of_new = (followed.line.waits.band(here, followed.now_s, each) for each in (300.0, 0.0))
    assert isinstance(band, Band)
    assert isinstance(of_new, Band)
    assert band.p50_s != pytest.approx(of_new.p50_s, abs=30)
    median = start_seconds(followed.forecast(last), followed.now_s)[1]
    assert median == pytest.approx(band.p50_s, abs=1)
