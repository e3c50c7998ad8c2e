"""Tests of the past use of queues, which the fold adds up from the times of events."""

from math import log

import pytest

from apportion.core.ledger.digest import canonical
from apportion.core.ledger.moments import text_of
from apportion.core.ledger.past_use import PERIODS, PastUse
from apportion.core.ledger.snapshot import restore, take
from apportion_schemas import Configuration, ConfigurationChanged, NodeCordoned, UsageRecorded
from apportion_schemas.configuration import QueuesConfiguration
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod

HOUR_MS = 3_600_000
HALF_LIFE = 64 * HOUR_MS  # periods of one hour
BEGIN = 473_364 * HOUR_MS  # the beginning of a period


def half_life(text: str) -> ConfigurationChanged:
    queues = QueuesConfiguration(usage_half_life=text)
    return ConfigurationChanged(by="ann", configuration=Configuration(queues=queues))


def at(ledger: Ledger, hours: float) -> Ledger:
    """Set the time of the next events to this many hours after `BEGIN`."""
    ledger.time = text_of(int((BEGIN + hours * HOUR_MS) * 1000))
    return ledger


def measured(*queues: str) -> Ledger:
    """Return a ledger with a half-life of 64 h, in which each queue has one pod on a whole GPU.

    The pod's uid is the name of its queue."""
    ledger = at(Ledger(rack("n1", 8)), 0)
    ledger.play(half_life("64h"))
    return ledger.submit(*(pod(name, cards(), queue=name) for name in queues)).settle()


def gpu_hours(ledger: Ledger, queue: str, hours: float | None = None) -> float:
    """Return the queue's past use in GPU-hours, as of this hour's period or the current one."""
    past = ledger.state.past_use
    assert past is not None
    now = 0 if hours is None else int(BEGIN + hours * HOUR_MS)
    sums = past.sums(queue, past.period(now))
    return sum(much for of, much in sums.items() if "/" in of) / 1000 / HOUR_MS


def test_a_queue_that_used_everything_for_a_half_life_has_half_of_what_counts_at_most() -> None:
    """Constant use for one half-life adds up to half of the largest possible past use.

    That maximum is about the use during one half-life, divided by ln 2."""
    past = PastUse(HALF_LIFE)
    past.go_to(BEGIN)
    past.hold("pod", ("a", {"nvidia/x": 1000}))
    most = 1000 * past.horizon_ms
    after = past.period() + PERIODS
    assert past.sums("a", after)["nvidia/x"] == pytest.approx(most / 2, rel=1e-9)
    assert past.sums("a", after + PERIODS)["nvidia/x"] == pytest.approx(most * 3 / 4, rel=1e-9)
    assert past.sums("a", after + 100 * PERIODS)["nvidia/x"] == pytest.approx(most, rel=1e-9)
    assert past.horizon_ms == pytest.approx(HALF_LIFE / log(2), rel=0.01)


def test_use_counts_half_after_a_half_life() -> None:
    """Use counts in full until its period ends, and half as much one half-life later."""
    ledger = measured("a")
    at(ledger, 0.5).gone("a")
    assert gpu_hours(ledger, "a") == 0  # as of the beginning of the period
    one = gpu_hours(ledger, "a", 1)
    assert one == pytest.approx(0.5 * 0.5 ** (1 / 64))
    assert gpu_hours(ledger, "a", 65) == pytest.approx(one / 2)
    assert gpu_hours(ledger, "a", 129) == pytest.approx(one / 4)


def test_nothing_is_measured_without_a_half_life() -> None:
    """Past use is in the state and its digest only if the configuration sets a half-life."""
    ledger = Ledger(rack("n1", 1), pod("a", cards())).settle()
    assert ledger.state.past_use is None
    assert b"past_use" not in canonical(ledger.state)
    ledger.play(half_life("7d"))
    assert b"past_use" in canonical(ledger.state)
    ledger.play(ConfigurationChanged(by="ann"))
    assert ledger.state.past_use is None


def test_pods_that_run_already_count_from_the_start_of_the_measurement() -> None:
    """If pods already run when a half-life is set, their use counts from that moment."""
    ledger = at(Ledger(rack("n1", 1), pod("a", cards(), queue="a")).settle(), 10)
    ledger.play(half_life("64h"))
    assert gpu_hours(ledger, "a", 11) == pytest.approx(0.5 ** (1 / 64))


def test_another_half_life_keeps_each_queue_s_part() -> None:
    """If the half-life changes, a queue keeps its fraction of the largest possible past use."""
    ledger = measured("a")
    at(ledger, 64).play(half_life("128h"))
    past = ledger.state.past_use
    assert past is not None
    most = 1000 * past.horizon_ms
    (used,) = past.sums("a", past.period()).values()
    assert used == pytest.approx(most / 2, rel=0.001)


def test_times_of_agents_and_of_the_past_do_not_count() -> None:
    """Past use ignores times of agents' events, and events with an earlier time change nothing."""
    ledger = measured("a")
    at(ledger, 1000).play(UsageRecorded(node="n1", seconds=3600, shares=()))
    assert gpu_hours(ledger, "a") == 0
    at(ledger, 2).submit(pod("b"))
    now = gpu_hours(ledger, "a")
    assert now == pytest.approx(0.5 ** (1 / 64) + 0.5 ** (2 / 64))
    at(ledger, 1).play(NodeCordoned(node="n1", by="ann", reason="test"))
    assert gpu_hours(ledger, "a") == now


def test_a_pod_counts_for_the_queue_of_its_gang() -> None:
    """If a gang moves to another queue, the use of its pods counts for that queue from then on."""
    ledger = measured()
    ledger.play(gang("team/job", 2, queue="a"))
    ledger.submit(*(member(f"m{n}", cards()) for n in range(2))).settle()
    at(ledger, 1).play(gang("team/job", 2, queue="b"))
    at(ledger, 2).gone("m0", "m1")
    once, twice = 0.5 ** (1 / 64), 0.5 ** (2 / 64)
    assert gpu_hours(ledger, "a") == pytest.approx(2 * twice)
    assert gpu_hours(ledger, "b") == pytest.approx(2 * once)


def test_a_device_of_another_size_changes_the_part_of_it_that_a_pod_uses() -> None:
    """If a device is reported with more memory, a share counts as a smaller part of the device."""
    ledger = at(Ledger(rack("n1", 1, memory_mib=10_000)), 0).play(half_life("64h"))
    ledger.submit(pod("a", ask(5_000), queue="a")).settle()
    at(ledger, 1).submit(pod("x", gates=("wait",))).report(rack("n1", 1, memory_mib=20_000))
    at(ledger, 2).gone("a")
    assert gpu_hours(ledger, "a") == pytest.approx(0.5 * 0.5 ** (2 / 64) + 0.25 * 0.5 ** (1 / 64))


def test_queues_that_used_nothing_for_long_are_forgotten() -> None:
    """The state drops a queue once its past use has decayed to nothing."""
    ledger = measured("a", "b")
    at(ledger, 1).gone("a")
    at(ledger, 64 * 3).submit(pod("x"))
    assert ledger.state.past_use is not None
    assert sorted(ledger.state.past_use.queues) == ["a", "b"]
    at(ledger, 64 * 12).submit(pod("y"))
    assert list(ledger.state.past_use.queues) == ["b"]


def test_a_snapshot_has_past_use_of_any_size() -> None:
    """A restored state has the same past use as before, even if its sums exceed 64 bits."""
    ledger = measured("a")
    past = ledger.state.past_use
    assert past is not None
    for use in past.queues["a"].values():
        use.closed = 1 << 100
    again = restore(take(ledger.state))
    assert again.past_use == past
