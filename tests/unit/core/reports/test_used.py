"""Tests of how much of their shares pods really use, as nodes report it, and of idle shares."""

from typing import Any

from apportion.core.ledger.moments import HOUR
from apportion.core.reports.prices import prices_of
from apportion.core.reports.used import IDLE
from apportion_schemas import PodGone, ShareUsed, UsageRecorded
from tests.support.accounts import Accounted
from tests.support.fleet import rack
from tests.support.pods import placed as placement
from tests.support.pods import pod, share

HALF = 40_960


def running(by: str = "namespace", *, step: int = 0, idle: int = IDLE) -> Accounted:
    """Return the accounting for a pod that has half of a device during the whole period."""
    accounted = Accounted(by, step=step, idle=idle).at(
        0, rack("n1", 1), pod("p1", labels={"team": "a"})
    )
    return accounted.at(0, placement("p1", shares=[share("n1-g0", HALF, 50)]))


def used(seconds: int = 3600, cores: int | None = 20, mib: int = 1024, **more: Any) -> ShareUsed:
    """Return the usage of the pod's share: `cores` is the percentage of the device in use, `mib`
    the memory."""
    work: dict[str, Any] = {}
    if cores is not None:
        work = {"cores_seconds": cores * seconds, "cores_peak": cores}
    return ShareUsed(
        pod="p1", namespace="default", name="p1", container="main", device="n1-g0",
        seconds=seconds, memory_mib=HALF, memory_mib_seconds=mib * seconds, memory_mib_peak=mib,
        cores=50, **work, **more,
    )  # fmt: skip


def told(*shares: ShareUsed, seconds: int = 3600) -> UsageRecorded:
    """Return the usage report that a node sends every hour."""
    return UsageRecorded(node="n1", seconds=seconds, shares=shares)


def test_used_is_what_nodes_tell() -> None:
    """A report shows used GPU-hours and GiB-hours.

    It also shows for how many of the allocated GPU-hours nodes have reported usage."""
    row = running().at(1, told(used())).at(2, told(used(cores=40))).rows()["default"]
    assert (row.allocated_gpu_hours, row.reported_gpu_hours) == (5.0, 1.0)
    assert (row.used_gpu_hours, row.used_gib_hours) == (0.6, 2.0)


def test_where_work_is_not_told_memory_counts_alone() -> None:
    """If a node reports only memory, the usage has GiB-hours but no GPU-hours."""
    row = running().at(1, told(used(cores=None))).rows()["default"]
    assert (row.reported_gpu_hours, row.used_gpu_hours, row.used_gib_hours) == (0.0, 0.0, 1.0)


def test_the_last_hour_of_a_pod_that_ended_is_its_rows() -> None:
    """If a node reports a pod's last hour after the pod has ended, that usage still counts in the
    pod's row."""
    accounted = running("label:team").at(0.9, PodGone(uid="p1"))
    row = accounted.at(1, told(used(seconds=3240))).rows()["a"]
    assert (row.used_gpu_hours, row.reported_gpu_hours) == (0.18, 0.45)


def test_an_hour_counts_in_the_steps_that_it_lies_in() -> None:
    """A reported hour is split over the steps that it overlaps. The part outside the period does
    not count."""
    accounted = running(step=1).at(1.5, told(used())).at(10.5, told(used()))
    hours = {row.start[11:13]: row.used_gpu_hours for row in accounted.report().steps if row.key}
    assert {key: value for key, value in hours.items() if value} == {
        "00": 0.1, "01": 0.1, "09": 0.1,
    }  # fmt: skip
    assert accounted.report().total.used_gpu_hours == 0.3


def test_a_share_that_did_nothing_for_an_hour_is_named() -> None:
    """A share that used no cores for at least an hour is listed as idle. Consecutive idle hours are
    one entry."""
    accounted = running().at(1, told(used(cores=0))).at(2, told(used(cores=0)))
    accounted.at(3, told(used())).at(4, told(used(1800, cores=0), seconds=1800))
    answer = accounted.idle()
    (stretch,) = answer.shares
    assert (stretch.pod, stretch.hours, stretch.gpu_hours, stretch.idle_now) == (
        "p1",
        2.0,
        1.0,
        False,
    )
    assert (answer.found, answer.rows[0].key, answer.total.gpu_hours) == (1, "default", 1.0)


def test_less_than_an_hour_is_no_stretch() -> None:
    """A share that used nothing for half an hour is not idle. Two such half-hours count only if
    they are consecutive."""
    half = told(used(1800, cores=0), seconds=1800)
    assert running().at(0.5, half).at(2, half).idle().found == 0
    assert running().at(0.5, half).at(1, half).idle().found == 1


def test_a_share_that_has_ended_is_not_idle_now() -> None:
    """An idle share whose pod has ended is listed with its period, but not as idle now."""
    accounted = running().at(1, told(used(cores=0)))
    assert accounted.idle().shares[0].idle_now
    assert not accounted.at(1.1, PodGone(uid="p1")).idle().shares[0].idle_now


def test_a_shorter_idle_time_may_be_asked_for() -> None:
    """If the user asks for an idle time of half an hour, a share that used nothing for half an hour
    is listed."""
    half = told(used(1800, cores=0), seconds=1800)
    assert running(idle=HOUR // 2).at(0.5, half).at(2, half).idle().found == 2
    assert running(idle=HOUR).at(0.5, half).idle().found == 0


def test_memory_tells_of_nothing_where_work_is_not_told() -> None:
    """If a node reports only memory, a share is idle if it used no memory."""
    assert running().at(1, told(used(cores=None, mib=0))).idle().found == 1
    assert running().at(1, told(used(cores=None, mib=5))).idle().found == 0


def test_where_no_node_has_reported_nobody_knows_what_did_nothing() -> None:
    """If no node reported usage in the period, the answer says that idle shares are unknown."""
    assert not running().idle().reported
    assert not running().at(90, told(used())).idle().reported
    assert running().at(1, told()).idle().reported
    assert running().at(1, told(used())).idle().reported


def test_idle_shares_are_named_also_where_their_card_has_no_price() -> None:
    """If the model of an idle share has no price, the share is still listed. The answer has no cost
    and names the model."""
    accounted = running().at(1, told(used(cores=0)))
    answer = accounted.idle(prices_of(b"currency = 'EUR'\n[models]\n'T4' = 1"))
    assert (answer.found, answer.total.cost) == (1, None)
    assert answer.unpriced == (answer.shares[0].model,)
    priced = accounted.idle(prices_of(b"currency = 'EUR'\n[models]\n'*' = 4"))
    assert (priced.total.cost, priced.unpriced) == (2.0, ())
