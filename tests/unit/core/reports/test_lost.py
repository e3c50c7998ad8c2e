"""Tests of lost hours: one test for each cause, then how many hours each cause gets."""

import csv
import io
from typing import Any

import pytest
from msgspec import structs

from apportion.core.ledger.state import State
from apportion.core.reports import lost
from apportion.core.reports.lost import cause_of
from apportion.core.reports.meters import Part
from apportion.core.reports.prices import prices_of
from apportion.runtime.jetstream.reports import as_csv
from apportion_schemas import (
    DeviceConstraints,
    DeviceCordoned,
    DeviceHealthChanged,
    GangShortage,
    NodeCordoned,
    PodBound,
    PodEvicted,
    PodGone,
    PodRefused,
    PodSubmitted,
    RefusalCode,
    ShareUsed,
    UsageRecorded,
)
from tests.support.accounts import Losing
from tests.support.fleet import T4, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, share
from tests.support.pods import placed as placement

HALF = 40_960
"""MiB: half of the default GPU."""
_C = RefusalCode


def refusal(uid: str, *codes: RefusalCode, **more: Any) -> PodRefused:
    """Return the event that refuses a pod, with one node for each of these codes."""
    return PodRefused(
        pod=uid, namespace="default", name=uid, reasons=dict.fromkeys(codes, 1), nodes=1, **more
    )


def used(cores: int | None, *, seconds: int = 3600, mib: int = 1024) -> UsageRecorded:
    """Return a usage report of p1's share, which is half of n1-g0, by default for one hour."""
    work: dict[str, Any] = (
        {} if cores is None else {"cores_seconds": cores * seconds, "cores_peak": cores}
    )
    one = ShareUsed(
        pod="p1", namespace="default", name="p1", container="main", device="n1-g0",
        seconds=seconds, memory_mib=HALF, memory_mib_seconds=mib * seconds, memory_mib_peak=mib,
        cores=50, **work,
    )  # fmt: skip
    return UsageRecorded(node="n1", seconds=3600, shares=(one,))


def test_what_no_pod_requests_is_no_demand() -> None:
    """Without pending pods, unallocated hours are `no_demand`, and shares of bound pods
    `worked`."""
    losing = Losing().at(0, rack("n1", 2), pod("p1", cards())).decide(0)
    assert losing.hours() == {"worked": 10.0, "no_demand": 10.0}


def test_demand_bounds_what_pods_cause() -> None:
    """Pending pods lose at most hours of the devices that they request; the rest is `no_demand`."""
    losing = Losing().at(0, rack("n1", 10)).at(0, pod("p1", cards(2)))
    assert losing.hours() == {"scheduler_delay": 20.0, "no_demand": 80.0}


def test_demand_is_for_devices_that_the_pod_accepts() -> None:
    """A pending pod counts as demand only for devices of a model that it accepts."""
    only = shape(cards(4), devices=DeviceConstraints(use_types=("T4",)))
    losing = Losing("model").at(0, rack("n1", 4), rack("n2", 2, model=T4))
    losing.at(0, pod("p1", shape=only)).decide(0)
    assert losing.hours(T4) == {"fragmentation": 20.0}
    assert losing.hours(rack().devices[0].model) == {"no_demand": 40.0}


def test_free_parts_in_which_no_pod_fits_are_fragmented() -> None:
    """If enough is free in total but no single device has enough, a pending pod's hours are lost to
    fragmentation. An example is two free halves of a GPU."""
    losing = Losing().at(0, rack("n1", 2), pod("a"), pod("b"), pod("whole", cards()))
    for uid, device in (("a", "n1-g0"), ("b", "n1-g1")):
        placing = placement(uid, shares=[share(device, HALF)])
        losing.at(0, placing, PodBound(pod=uid, node="n1", attempt=1))
    assert losing.decide(0).hours() == {"worked": 10.0, "fragmentation": 10.0}


def test_the_rest_of_a_device_is_no_whole_device() -> None:
    """If a quota refuses a pod that requests whole devices, the rest of a device in use is not lost
    to the quota. It is if the pod requests a part of a device."""
    for request, cause in ((cards(2), "no_demand"), (ask(HALF), "quota")):
        losing = Losing().at(0, rack("n1", 1), pod("p1"), pod("p2", request))
        losing.at(0, placement("p1", shares=[share("n1-g0", HALF)]))
        losing.at(0, PodBound(pod="p1", node="n1", attempt=1), refusal("p2", _C.QUOTA_EXCEEDED))
        assert losing.hours() == {"worked": 5.0, cause: 5.0}


def test_limits_are_quota() -> None:
    """If a quota refuses a pod, the hours of the devices that it requests are lost to the quota."""
    losing = Losing().at(0, rack("n1", 4))
    losing.at(0, pod("p1", cards(3)), refusal("p1", _C.QUOTA_EXCEEDED))
    assert losing.hours("default") == {"quota": 30.0}
    assert losing.hours() == {"quota": 30.0, "no_demand": 10.0}


def test_a_gang_without_its_pods_is_gang_assembly() -> None:
    """Hours that a gang could use are gang assembly while the gang lacks pods or its PodGroup."""
    losing = Losing().at(0, rack("n1", 4), member("p1", cards()))  # no PodGroup yet
    losing.at(4, gang(min_available=3)).decide(4)
    assert losing.hours() == {"gang_assembly": 10.0, "no_demand": 30.0}


@pytest.mark.parametrize("fitting", [0, 3])
def test_a_gang_that_fits_in_part_is_fragmentation(fitting: int) -> None:
    """If only a part of a gang fits, all hours that it requests are lost to fragmentation. How many
    pods fit does not matter, because the scheduler does not report changes of that number."""
    shortage = GangShortage(needed=4, present=4, fitting=fitting)
    for codes, nodes, cause in (
        ((_C.DEVICE_IN_USE,), 1, Part.FRAGMENTED),
        ((_C.TAINT_NOT_TOLERATED,), 2, Part.FRAGMENTED),
        ((_C.TAINT_NOT_TOLERATED,), 1, None),
    ):
        refused = structs.replace(refusal("p1", *codes, gang=shortage), nodes=nodes)
        ledger = Ledger(pod("p1", cards()), refused)
        assert cause_of(ledger.state, ledger.pod("p1")) is cause
    losing = Losing().at(0, rack("n1", 3), gang(min_available=4))
    losing.at(0, *(member(f"p{at}", cards()) for at in range(4))).decide(0)
    assert losing.hours() == {"fragmentation": 30.0}


def test_replacements_of_a_gang_lose_parts_of_devices_to_fragmentation() -> None:
    """If only two halves of devices are free for two replacement pods of a gang, these halves are
    lost to fragmentation, although the gang's other pods run."""
    losing = Losing().at(0, rack("n1", 8), gang(min_available=8))
    losing.at(0, *(member(f"p{at}", cards()) for at in range(8))).decide(0)
    for ended, uid in (("p0", "a"), ("p1", "b")):
        (device,) = losing.ledger.devices(ended)
        losing.at(0, PodGone(uid=ended), pod(uid))
        half = placement(uid, shares=[share(device, HALF)], previous=losing_chain(losing))
        losing.at(0, half, PodBound(pod=uid, node="n1", attempt=1))
    losing.at(0, member("p8", cards()), member("p9", cards())).decide(0)
    assert losing.hours() == {"worked": 70.0, "fragmentation": 10.0}


def test_placed_pods_that_wait_for_their_gang_are_gang_assembly() -> None:
    """Shares of held pods are gang assembly until the gang is placed as a whole, then scheduler
    delay until the pods are bound."""
    losing = Losing(hours=9).at(
        0, rack("n1", 2), gang(), member("p1", cards()), member("p2", cards())
    )
    losing.at(0, placement("p1", shares=[share("n1-g0", 81_920)], held=True))
    losing.at(3, placement("p2", shares=[share("n1-g1", 81_920)], previous=losing_chain(losing)))
    losing.at(6, *(PodBound(pod=uid, node="n1", attempt=1) for uid in ("p1", "p2")))
    assert losing.hours() == {
        "gang_assembly": 3.0, "scheduler_delay": 3.0 + 2 * 3.0, "worked": 6.0
    }  # fmt: skip


def losing_chain(losing: Losing) -> str:
    """Return the digest of node n1's chain, which the node's next placement must contain."""
    return losing.ledger.state.nodes["n1"].chain


@pytest.mark.parametrize(
    ("codes", "cause"),
    [
        ((_C.GANG_DOMAIN_TOO_SMALL, _C.DEVICE_IN_USE), Part.TOPOLOGY),
        ((_C.NUMA_MISMATCH,), Part.TOPOLOGY),
        ((_C.POD_ANTI_AFFINITY,), Part.TOPOLOGY),
        ((_C.QUEUE_FIRST_WAITS,), Part.FRAGMENTED),
        ((_C.QUEUE_CLOSED, _C.GANG_DOMAIN_TOO_SMALL), Part.QUOTA),
        ((_C.NODE_NOMINATED,), Part.DELAYED),
        ((_C.NODE_NOMINATED, _C.MEMORY_INSUFFICIENT), Part.FRAGMENTED),
        ((_C.CPU_INSUFFICIENT, _C.TYPE_MISMATCH), Part.FRAGMENTED),
        ((_C.TYPE_MISMATCH, _C.NODE_LABELS_MISMATCH, _C.TAINT_NOT_TOLERATED), None),
        ((_C.DEVICE_UNHEALTHY, _C.NODE_CORDONED), None),
        ((_C.VOLUME_CLAIM_NOT_READY,), None),
        ((RefusalCode("OfANewerBuild"),), Part.FRAGMENTED),
    ],
)
def test_the_codes_of_a_refusal_are_its_cause(
    codes: tuple[RefusalCode, ...], cause: Part | None
) -> None:
    """A refused pod's hours are lost to the first cause that its refusal codes name, or to no cause
    if the pod could not use any free device."""
    ledger = Ledger(pod("p1", cards()), refusal("p1", *codes))
    assert cause_of(ledger.state, ledger.pod("p1")) is cause


def test_gated_pods_request_nothing() -> None:
    """A pod with scheduling gates causes no lost hours, because its creator holds it back."""
    assert cause_of(State(), Ledger(pod("p1", gates=("g",))).pod("p1")) is None


def test_a_pod_for_which_others_are_evicted_is_delayed() -> None:
    """While pods are evicted for a pending pod, the devices for it count as scheduler delay."""
    losing = Losing().at(0, rack("n1", 2), pod("low", cards()))
    losing.decide(0).at(0, pod("high", cards(2), priority=9), refusal("high", _C.DEVICE_IN_USE))
    evicted = PodEvicted(
        pod="low", namespace="default", name="low", attempt=1, node="n1", priority=0,
        beneficiary="high", beneficiary_name="default/high", beneficiary_priority=9,
        nominated="n1", reason="preempted", previous=losing_chain(losing),
    )  # fmt: skip
    losing.at(4, evicted)
    assert losing.hours() == {"worked": 10.0, "fragmentation": 4.0, "scheduler_delay": 6.0}


def test_cordoned_devices_drain_until_they_are_empty() -> None:
    """The free part of a cordoned node is `draining` while the node has pods, then `cordoned`. If
    only devices are cordoned, the pods of each device decide."""
    losing = Losing().at(0, rack("n1", 2), pod("p1", cards())).decide(0)
    losing.at(2, NodeCordoned(node="n1", by="x", reason="fan")).at(6, PodGone(uid="p1"))
    assert losing.hours() == {"worked": 6.0, "no_demand": 2.0, "draining": 4.0, "cordoned": 8.0}
    losing = (
        Losing()
        .at(0, rack("n1", 2), pod("p1"))
        .at(0, placement("p1", shares=[share("n1-g0", HALF)]))
    )
    losing.at(0, PodBound(pod="p1", node="n1", attempt=1))
    losing.at(0, *(DeviceCordoned(device=f"n1-g{at}", by="x", reason="fan") for at in range(2)))
    assert losing.hours() == {"worked": 5.0, "draining": 5.0, "cordoned": 10.0}


def test_unhealthy_comes_before_all_other_causes() -> None:
    """The free part of an unhealthy device is `unhealthy`, even if it is cordoned or requested."""
    losing = Losing().at(0, rack("n1", 1), NodeCordoned(node="n1", by="x", reason="fan"))
    losing.at(0, pod("p1", cards())).at(
        3, DeviceHealthChanged(node="n1", device="n1-g0", healthy=False)
    )
    assert losing.hours() == {"cordoned": 3.0, "unhealthy": 7.0}


def running(by: str = "namespace", *, step: int = 0) -> Losing:
    """Return the accounting of a pod that has half of a device during the whole period."""
    losing = Losing(by, step=step).at(0, rack("n1", 1), pod("p1"))
    losing.at(0, placement("p1", shares=[share("n1-g0", HALF, 50)]))
    return losing.at(0, PodBound(pod="p1", node="n1", attempt=1))


def test_shares_without_work_are_idle() -> None:
    """If a usage report shows no work, these hours of the share are idle. Hours without a report
    count as worked and as unmeasured."""
    losing = running().at(1, used(20)).at(2, used(0)).at(3, used(0))
    total = losing.answer().total
    assert (total.worked_gpu_hours, total.idle_gpu_hours) == (4.0, 1.0)
    assert total.unmeasured_gpu_hours == 3.5
    assert running().at(1, used(None, mib=0)).hours()["idle"] == 0.5
    assert "idle" not in running().at(1, used(None, mib=9)).hours()


def test_no_more_is_idle_than_was_allocated() -> None:
    """If a usage report is counted twice, a step's idle hours do not exceed its allocated hours."""
    losing = running(step=1).at(1, used(0), used(0))
    first = next(row for row in losing.answer().steps if row.key == "default")
    assert (first.worked_gpu_hours, first.idle_gpu_hours) == (0.0, 0.5)


def test_rows_have_what_their_pods_used_and_requested() -> None:
    """A report by queue has a row with what each queue's pods used and requested, and a row without
    a name for all other hours. By node, the hours with a cause are divided by what is free."""
    events = (
        rack("n1", 1),
        rack("n2", 3),
        pod("p1", cards(), queue="a"),
        pod("p2", cards(2), queue="b"),
    )
    losing = Losing("queue").at(0, *events)
    assert losing.hours("a") == {"scheduler_delay": 10.0}
    assert losing.hours("b") == {"scheduler_delay": 20.0}
    assert losing.answer().rows[-1].key in {"", "a"}
    assert next(row for row in losing.answer().rows if not row.key).no_demand_gpu_hours == 10.0
    losing = Losing("node").at(0, *events)
    assert losing.hours("n1") == {"scheduler_delay": 7.5, "no_demand": 2.5}
    assert losing.hours("n2") == {"scheduler_delay": 22.5, "no_demand": 7.5}


def test_rounded_hours_add_up_exactly() -> None:
    """The hours of a row are rounded to six decimals, and still add up to the capacity."""
    losing = Losing(hours=1 / 3600).at(0, rack("n1", 3), pod("p1", cards()), pod("p2", cards()))
    losing.at(0, refusal("p2", _C.QUOTA_EXCEEDED))
    total = losing.answer().total
    assert total.capacity_gpu_hours == 0.000833
    parts = (total.no_demand_gpu_hours, total.quota_gpu_hours, total.scheduler_delay_gpu_hours)
    assert sorted(parts) == [0.000277, 0.000278, 0.000278]


def test_csv_and_costs() -> None:
    """The CSV has one row per group, and its columns add up to the totals, except for rounding. The
    cost is that of the lost hours."""
    losing = Losing().at(0, rack("n1", 4), pod("p1", cards(), namespace="web")).decide(0)
    answer = losing.answer(prices_of(b"currency = 'EUR'\n[models]\n'*' = 2"))
    assert (answer.total.lost_cost, answer.currency) == (60.0, "EUR")
    rows = list(csv.DictReader(io.StringIO(as_csv(answer))))
    assert [row["key"] for row in rows] == ["", "web"]
    assert sum(float(row["capacity_gpu_hours"]) for row in rows) == 40.0
    assert [float(row["lost_cost"]) for row in rows] == [60.0, 0.0]


def test_pods_without_devices_lose_nothing() -> None:
    """A pending pod that requests no devices causes no lost hours."""
    losing = Losing().at(0, node("n1"), rack("n2", 1), PodSubmitted(
        uid="p1", namespace="default", name="p1", shape=shape(), dialect="hami"
    ))  # fmt: skip
    assert losing.hours() == {"no_demand": 10.0}


class CountedModel(str):
    """The name of a device model that counts how often it is hashed."""

    __slots__ = ()
    hashed = 0

    def __hash__(self) -> int:
        CountedModel.hashed += 1
        return super().__hash__()


def test_an_event_costs_in_proportion_to_the_kinds_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With four times as many device models, an event causes about four times as many look-ups."""
    monkeypatch.setattr(lost, "kind_of", lambda device: (CountedModel(device.model),))
    looked_up: list[int] = []
    for kinds in (8, 32):
        racks = [rack(f"n{at}", 1, model=f"M{at}") for at in range(kinds)]
        losing = Losing().at(0, *racks, pod("p1", cards()))
        change = losing.ledger.take(pod("p2", cards()))
        before = CountedModel.hashed
        losing.account.observe(change, 0)
        looked_up.append(CountedModel.hashed - before)
    assert 0 < looked_up[1] < 6 * looked_up[0], looked_up
