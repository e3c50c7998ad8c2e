"""Tests of which pods count as idle, by the usage that their nodes report."""

import pytest
from msgspec import structs

from apportion.core.ledger.digest import canonical
from apportion.core.ledger.handlers.idle import GAP, STALE, IdleNews, idle_pod
from apportion.core.ledger.moments import HOUR, SECOND
from apportion.core.ledger.snapshot import restore, take
from apportion_schemas import (
    ConfigurationChanged,
    NodeHeard,
    NodeSilent,
    PodChanged,
    PodSubmitted,
    UsageRecorded,
)
from tests.support.fleet import rack
from tests.support.idling import BEGIN, at, idle_for, looking, report, used
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod


def ledger_of(*pods: PodSubmitted, after: str = "4h", **fields: object) -> Ledger:
    """Return a ledger with these pods on the node n1, which looks for idle pods."""
    ledger = Ledger(looking(after, **fields), rack("n1", 8))
    return ledger.submit(*pods).settle()


def idle(ledger: Ledger, now: int = 0) -> dict[str, float]:
    """Return for how many hours each idle pod did no work."""
    found = {uid: idle_pod(ledger.state, pod, now) for uid, pod in ledger.state.pods.items()}
    return {uid: each.seconds / 3_600 for uid, each in found.items() if each is not None}


def test_a_pod_that_did_nothing_for_long_enough_is_idle() -> None:
    """A pod is idle once consecutive reports without work cover `idle.after`."""
    ledger = idle_for(ledger_of(pod("a", cards()), pod("b", cards())), 3, "a", "b")
    assert idle(ledger) == {}
    report(ledger, 4, "n1", *used(ledger, "a"), *used(ledger, "b", 1))
    assert idle(ledger) == {"a": 4}
    found = idle_pod(ledger.state, ledger.pod("a"))
    assert found is not None
    assert (found.since, found.until, found.memory_mib) == (BEGIN, BEGIN + 4 * HOUR, 2_048)


def test_work_ends_an_idle_period() -> None:
    """After any work, a pod must be idle for the whole time again."""
    ledger = idle_for(ledger_of(pod("a", cards())), 5, "a")
    report(ledger, 6, "n1", *used(ledger, "a", 50))
    assert idle(ledger) == {}
    assert idle(idle_for(ledger, 3, "a", first=7)) == {}
    assert idle(idle_for(ledger, 1, "a", first=10)) == {"a": 4}


@pytest.mark.parametrize(("below", "cores", "found"), [(0, 1, 0), (5, 2, 1), (5, 3, 0)])
def test_little_work_counts_as_none_if_the_configuration_says_so(
    below: int, cores: int, found: int
) -> None:
    """With `below`, a share is idle if it uses less than this percentage of its own compute."""
    ledger = ledger_of(pod("a", ask(1_000, cores=50)), below=below)
    for hour in range(1, 5):
        report(ledger, hour, "n1", *used(ledger, "a", cores))
    assert len(idle(ledger)) == found


def test_a_short_peak_is_work() -> None:
    """With `below`, the peak of an hour counts, so one minute of full use ends an idle period."""
    ledger = idle_for(ledger_of(pod("a", cards()), below=5), 5, "a")
    (one,) = used(ledger, "a")
    report(ledger, 6, "n1", structs.replace(one, cores_seconds=60 * 100, cores_peak=100))
    assert idle(ledger) == {}


def test_a_share_whose_compute_is_not_measured_is_never_idle() -> None:
    """If a device reports only memory, no pod on it counts as idle."""
    ledger = ledger_of(pod("a", cards()))
    for hour in range(1, 9):
        report(ledger, hour, "n1", *used(ledger, "a", None, mib=0))
    assert idle(ledger) == {}


def test_a_pod_is_idle_only_if_all_of_its_shares_are() -> None:
    """A pod that works on one of two devices is not idle, nor is one with an unreported share."""
    ledger = ledger_of(pod("a", cards(2)))
    for hour in range(1, 6):
        one, _ = used(ledger, "a")
        _, other = used(ledger, "a", 90)
        report(ledger, hour, "n1", one, *([other] if hour % 2 else []))
    assert idle(ledger) == {}
    assert idle(idle_for(ledger, 4, "a", first=6)) == {"a": 4}


def test_time_without_reports_does_not_count() -> None:
    """After a gap of more than half an hour, a pod must be idle for the whole time again."""
    ledger = idle_for(ledger_of(pod("a", cards())), 3, "a")
    report(ledger, 5, "n1", *used(ledger, "a"))
    assert idle(ledger) == {}
    assert idle(idle_for(ledger, 3, "a", first=6)) == {"a": 4}


def test_a_record_that_measured_only_a_part_of_its_hour_is_a_gap() -> None:
    """A report that covers only some minutes of its hour says nothing about the other minutes."""
    ledger = idle_for(ledger_of(pod("a", cards())), 3, "a")
    report(ledger, 4, "n1", *used(ledger, "a", seconds=600))
    assert idle(idle_for(ledger, 3, "a", first=5)) == {}


def test_a_record_counts_once_and_a_clock_that_is_set_back_adds_nothing() -> None:
    """Repeated reports of one hour, or reports of an earlier time, do not make a pod idle."""
    ledger = idle_for(ledger_of(pod("a", cards())), 2, "a")
    for _ in range(9):
        report(ledger, 2, "n1", *used(ledger, "a"))
        report(ledger, 1.5, "n1", *used(ledger, "a"))
    assert idle(ledger) == {}


def test_a_pod_of_a_silent_node_or_with_an_old_report_is_not_idle() -> None:
    """What a pod does now is unknown if its agent is silent, or its last report is too old."""
    ledger = idle_for(ledger_of(pod("a", cards())), 4, "a")
    end = BEGIN + 4 * HOUR
    assert idle(ledger, end + STALE) == {"a": 4}
    assert idle(ledger, end + STALE + SECOND) == {}
    assert idle(ledger, end - GAP) == {"a": 4}
    assert idle(ledger, end - GAP - SECOND) == {}  # the node's clock is ahead
    ledger.play(NodeSilent(node="n1", grace_s=60))
    assert idle(ledger) == {}
    ledger.play(NodeHeard(node="n1"))
    assert idle(ledger) == {"a": 4}


def test_a_label_and_the_namespaces_of_the_configuration_exempt_pods() -> None:
    """A pod is exempt with the label, which its owner may set at any time, or by its namespace."""
    ledger = ledger_of(pod("a", cards()), pod("b", cards(), namespace="x"), namespaces=("default",))
    idle_for(ledger, 4, "a", "b")
    assert idle(ledger) == {"a": 4}
    ledger.play(PodChanged(uid="a", labels={"apportion.dev/idle": "keep"}))
    assert idle(ledger) == {}


def test_reports_of_another_node_or_of_an_unknown_share_do_not_count() -> None:
    """Only reports of a pod's own node about its own shares count."""
    ledger = ledger_of(pod("a", cards())).report(rack("n2", 1))
    shares = used(ledger, "a")
    for hour in range(1, 6):
        report(ledger, hour, "n2", *shares)
    assert ledger.state.idle == {}


def test_nothing_is_kept_of_pods_that_left_their_devices() -> None:
    """The state keeps idle times only of placed pods."""
    ledger = idle_for(ledger_of(pod("a", cards()), pod("b", cards())), 4, "a", "b")
    ledger.gone("a").voided("b")
    assert ledger.state.idle == {}


def test_without_the_configuration_nothing_is_kept() -> None:
    """The state and its digest have no idle times unless `idle.after` is set."""
    ledger = idle_for(Ledger(rack("n1", 8), pod("a", cards())).settle(), 4, "a")
    assert ledger.state.idle is None
    assert b"idle" not in canonical(ledger.state)
    ledger.play(looking())
    idle_for(ledger, 4, "a", first=5)
    assert idle(ledger) == {"a": 4}
    ledger.play(ConfigurationChanged(by="ann"))
    assert ledger.state.idle is None


def test_another_threshold_starts_again() -> None:
    """If `idle.below` changes, earlier reports do not count; with another `after`, they do."""
    ledger = idle_for(ledger_of(pod("a", cards())), 4, "a")
    ledger.play(looking("2h"))
    assert idle(ledger) == {"a": 4}
    ledger.play(looking("2h", below=5))
    assert idle(ledger) == {}


def test_a_snapshot_has_the_idle_times() -> None:
    """A restored state has the same idle pods, and later reports continue their times."""
    ledger = idle_for(ledger_of(pod("a", cards())), 3, "a")
    again = restore(take(ledger.state))
    assert again.idle == ledger.state.idle
    assert again.idle


def test_a_pod_is_news_once_while_it_stays_idle() -> None:
    """Each idle period of a pod is reported once, also if a label exempts the pod for a time."""
    ledger = idle_for(ledger_of(pod("a", cards())), 3, "a")
    news, found = IdleNews(ledger.state), list[str]()

    def play(hour: int, cores: int) -> None:
        at(ledger, hour)
        shares = used(ledger, "a", cores)
        change = ledger.take(UsageRecorded(node="n1", seconds=3_600, shares=shares))
        found.extend(f"{hour} {each.uid}" for each in news.news(change))

    for hour, cores in enumerate([0, 0, 9, 0, 0, 0, 0, 0], 4):
        play(hour, cores)
    assert found == ["4 a", "10 a"]
    assert [each.uid for each in news.news()] == ["a"]
    assert news.news(ledger.take(PodChanged(uid="a", labels={"apportion.dev/idle": "keep"}))) == []
    change = ledger.take(PodChanged(uid="a", labels={}))
    assert [each.uid for each in news.news(change)] == ["a"]
