"""Tests of queues whose past use counts: which pod is next, what is taken back, what users see."""

from apportion.core.explain.explainer import queue_answers
from apportion.core.explain.text.answer_text import entitlement_words
from apportion.core.explain.why import why
from apportion.core.ledger.moments import micros_of, text_of
from apportion.core.placement.limits.queues import Queues
from apportion_schemas import Configuration, ConfigurationChanged, PodEvicted
from apportion_schemas.configuration import QueuesConfiguration
from tests.support.fleet import observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import TIME, Ledger
from tests.unit.core.placement.limits.test_queue_tree import in_queue, queue, running, settle

HOUR = 3_600_000_000
BEGIN = (micros_of(TIME) or 0) // HOUR * HOUR
GPUS = ("worth", "nvidia")


def remembering(ledger: Ledger, half_life: str = "64h", weight: float | None = None) -> Ledger:
    said = QueuesConfiguration(usage_half_life=half_life, usage_weight=weight)
    return at(ledger, 0).play(
        ConfigurationChanged(by="ann", configuration=Configuration(queues=said))
    )


def at(ledger: Ledger, hours: float) -> Ledger:
    """Set the time of the next events, in hours. Periods begin at full hours."""
    ledger.time = text_of(int(BEGIN + hours * HOUR))
    return ledger


def entitled(ledger: Ledger, *names: str) -> list[float]:
    """Return how many GPUs each queue is entitled to, rounded to tenths."""
    queues = Queues(ledger.state)
    return [round(queues.parts(name)[GPUS].entitled / 1000, 1) for name in names]


def used_alone(half_lives: int = 1, **fields: int) -> Ledger:
    """Return 12 GPUs that queue `a` used alone until now, by default for one half-life.

    Both queues have these `fields`, and now request 20 GPUs each."""
    ledger = remembering(Ledger(rack("n1", 12), queue("a", **fields), queue("b", **fields)))
    ledger.submit(*in_queue("a", 12)).settle()
    at(ledger, 64 * half_lives).gone(*(f"a-{number}" for number in range(12)))
    return ledger.submit(*in_queue("a", 20, first=12), *in_queue("b", 20))


def test_a_queue_that_used_less_gets_more_until_both_used_the_same() -> None:
    """If one of two queues used everything for one half-life, it is entitled to 1/3. Its past use
    is half of the maximum, so the weights are 1/2 + 1/2 - 1/2 and 1/2 + 1/2 - 0.

    One half-life later, past use is 1/4 + 1/2 x 1/3 and 1/2 x 2/3, so the weights are 7/12 and
    2/3."""
    ledger = used_alone()
    assert entitled(ledger, "a", "b") == [4.0, 8.0]
    ledger.settle()
    assert running(ledger) == {"a": 4, "b": 8}
    at(ledger, 128).submit(*in_queue("a", 1, first=99))
    assert entitled(ledger, "a", "b") == [5.6, 6.4]
    at(ledger, 256).submit(*in_queue("a", 1, first=98))
    # 1 - (1/2 x 1/8 + 1/3 x 7/8) and 1 - 2/3 x 7/8: queue b has used more than its half by now
    assert entitled(ledger, "a", "b") == [7.3, 4.7]


def test_without_a_weight_past_use_is_only_measured() -> None:
    """With `usageWeight: 0`, past use is shown, but does not change entitlements."""
    ledger = remembering(Ledger(rack("n1", 12), queue("a"), queue("b")), weight=0)
    ledger.submit(*in_queue("a", 20)).settle()
    at(ledger, 64).submit(*in_queue("b", 20))
    assert entitled(ledger, "a", "b") == [6.0, 6.0]
    past_use = queue_answers(ledger.state, ["a"])[0].past_use
    assert past_use is not None
    assert past_use["nvidia"] > 0


def test_entitlements_change_only_when_a_period_begins() -> None:
    """Entitlements change only when a period begins, not with each decision."""
    ledger = used_alone()
    at(ledger, 64.9).submit(*in_queue("b", 1, first=90)).settle()
    before = Queues(ledger.state).parts("a")[GPUS].entitled
    at(ledger, 64.99).submit(*in_queue("b", 1, first=91))
    assert Queues(ledger.state).parts("a")[GPUS].entitled == before
    at(ledger, 65).submit(*in_queue("b", 1, first=92))
    assert Queues(ledger.state).parts("a")[GPUS].entitled != before


def test_what_a_queue_deserves_does_not_depend_on_past_use() -> None:
    """A queue takes back what it deserves, even if it used the whole cluster before."""
    ledger = used_alone(deserved=6)
    assert entitled(ledger, "a", "b") == [6.0, 6.0]
    settle(ledger)
    assert running(ledger) == {"a": 6, "b": 6}


def test_past_use_evicts_no_pod() -> None:
    """A queue that is entitled to more because of past use waits until pods end. It evicts none."""
    ledger = remembering(Ledger(rack("n1", 12), queue("a"), queue("b"), queue("c", deserved=1)))
    ledger.submit(*in_queue("a", 6)).settle()
    at(ledger, 640).submit(*in_queue("b", 6)).settle()
    assert running(ledger) == {"a": 6, "b": 6}
    ledger.submit(*in_queue("b", 6, first=6)).settle()
    (a, b) = entitled(ledger, "a", "b")
    assert a < 6 < b
    assert not [each for each in ledger.events if isinstance(each, PodEvicted)]
    ledger.gone("a-0").submit(*in_queue("a", 1, first=9)).settle()
    assert running(ledger) == {"a": 5, "b": 7}
    # nor does queue a take back its half without past use
    ledger.submit(*in_queue("a", 6, first=20)).settle()
    assert not [each for each in ledger.events if isinstance(each, PodEvicted)]


def test_queues_below_a_queue_divide_by_their_own_past_use() -> None:
    """Child queues divide what their parent has now by their own past use."""
    ledger = remembering(Ledger(rack("n1", 12), queue("x"), queue("y")))
    ledger.play(queue("x1", parent="x"), queue("x2", parent="x"))
    ledger.submit(*in_queue("x1", 6), *in_queue("y", 6)).settle()
    at(ledger, 64).submit(*in_queue("x1", 9, first=6), *in_queue("x2", 9))
    ledger.submit(*in_queue("y", 9, first=6))
    assert entitled(ledger, "x", "y", "x1", "x2") == [6.0, 6.0, 2.0, 4.0]


def test_other_resources_follow_their_own_past_use() -> None:
    """CPU is divided by past use of CPU, and GPU memory by past use of GPUs."""
    ledger = Ledger(rack("n1", 12), observed("n1", cpu_milli=64_000), queue("a"), queue("b"))
    ledger.play(queue("b", deserved={"nvidia.com/gpumem": 1}))
    remembering(ledger).submit(*in_queue("a", 12)).settle()
    at(ledger, 64).submit(*in_queue("b", 20))
    queues = Queues(ledger.state)
    a, b = queues.parts("a"), queues.parts("b")
    found = [each for each in a if each[-1] == "nvidia" and each != GPUS]
    assert found, a
    for amount in found:
        assert a[amount].entitled * 1.9 < b[amount].entitled


def test_the_scheduler_wakes_when_a_period_begins() -> None:
    """If queues lend, the scheduler retries pending pods when the next period begins."""
    ledger = used_alone(deserved=3)
    settle(ledger)
    assert ledger.engine.needs_time
    assert ledger.engine.held_until == BEGIN + 65 * HOUR
    ledger.engine.tell_time(BEGIN + 65 * HOUR)
    assert ledger.engine.held_until == BEGIN + 66 * HOUR
    assert not Ledger(rack("n1", 12), queue("a")).engine.needs_time


def test_get_queues_and_why_show_past_use(golden: Golden) -> None:
    """`get queues` shows used device hours. `why` also shows the entitlement without past use."""
    ledger = used_alone().settle()
    a, b = queue_answers(ledger.state, ["a", "b"])
    assert (a.past_use, b.past_use) == ({"nvidia": 551_000}, {})
    assert [(part.entitled, part.plain) for part in a.parts or ()] == [(4_000, 6_000)]
    waiting = next(each for each in ledger.state.pods.values() if each.refusal is not None)
    refused = why(ledger.state, waiting).refused
    assert refused is not None
    assert refused.entitlement is not None
    assert refused.entitlement.parts[0].plain == 6_000
    assert not refused.entitlement.takes_back
    golden({"why": entitlement_words(refused.entitlement)})


def test_a_new_engine_decides_alike() -> None:
    """A scheduler that restarts divides as one that has followed all events."""
    ledger = used_alone()
    before = ledger.consider()
    assert before.events
    assert before.events == ledger.decide()
