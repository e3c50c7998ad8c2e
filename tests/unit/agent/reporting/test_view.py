"""Tests of the state that an agent folds for its nodes: the last reported inventory, and the
placements ("claims") that it has to allocate."""

import msgspec

from apportion.agent.reporting.view import HELD_MAX, FleetView
from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    ConfigurationChanged,
    DeviceHealthChanged,
    Host,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodBound,
    SharesAllocated,
)
from apportion_schemas.configuration import NvidiaConfiguration
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod
from tests.unit.agent.events import event_of, placed, record_of

BOUND = PodBound(pod="p", node="n1", attempt=1)


def folded(*events: Payload, remember: bool = False) -> FleetView:
    """Return what node n1's agent knows after these events, whose revisions start at 1."""
    view = FleetView(["n1"], remember=remember)
    for revision, data in enumerate(events, start=1):
        view.apply(record_of(revision, data), event_of(data, f"id-{revision}"))
    return view


def test_bound_after_placed_is_due_once() -> None:
    """When a placed pod is bound, the agent gets one task to allocate the pod's devices. The task
    lists each device once, in the order of the shares."""
    view = folded(placed("p", "GPU-b", "GPU-a", "GPU-b"), BOUND)
    assert view.became_due.is_set()
    (claim,) = view.take_due()
    assert (claim.node, claim.pod, claim.attempt) == ("n1", "p", 1)
    assert claim.devices == ("GPU-b", "GPU-a")
    assert claim.bound_revision == 2
    assert not view.take_due()
    assert not view.became_due.is_set()


def test_what_is_not_due() -> None:
    """The agent allocates the devices of a placement only once the same attempt is bound, and only
    on its own nodes."""
    assert not folded(placed("p", "GPU-a")).due
    assert not folded(BOUND).due
    assert not folded(placed("p", "GPU-a"), PodBound(pod="p", node="n1", attempt=2)).due
    assert not folded(placed("p", "GPU-a", node="n2"), PodBound(pod="p", node="n2", attempt=1)).due


def test_an_answer_or_a_void_settles_a_claim() -> None:
    """The agent has nothing left to allocate for a pod once the allocation has succeeded or failed,
    or the placement was voided. The order of the events does not matter."""
    for answer in (
        SharesAllocated(pod="p", node="n1", attempt=1, devices=("GPU-a",)),
        AllocationFailed(pod="p", node="n1", attempt=1, message="broken"),
        PlacementVoided(pod="p", node="n1", attempt=1, reason="gone"),
    ):
        assert not folded(placed("p", "GPU-a"), BOUND, answer).due
        assert not folded(placed("p", "GPU-a"), answer, BOUND).due
        view = folded(placed("p", "GPU-a"), BOUND, answer).nodes["n1"]
        assert not view.placed
        assert not view.bound


def test_doubles_change_nothing() -> None:
    """If the ledger has two placements or two bindings of one attempt, the agent ignores the
    second."""
    view = folded(placed("p", "GPU-a"), placed("p", "GPU-b"), BOUND, BOUND)
    (claim,) = view.take_due()
    assert (claim.devices, claim.bound_revision) == (("GPU-a",), 3)


def test_the_binding_says_which_placement_it_means() -> None:
    """If an attempt has two placement events, the agent allocates the placement that the binding
    event names as its `cause`."""
    view = folded(placed("p", "GPU-rogue"), placed("p", "GPU-true"))
    view.apply(record_of(3, BOUND), msgspec.structs.replace(event_of(BOUND), cause=2))
    assert [claim.devices for claim in view.take_due()] == [("GPU-true",)]


def test_the_next_attempt_is_a_claim_of_its_own() -> None:
    """If a placement was voided and the pod is placed again, the agent allocates only the new
    devices."""
    view = folded(
        placed("p", "GPU-a"),
        PlacementVoided(pod="p", node="n1", attempt=1, reason="failed"),
        placed("p", "GPU-b", attempt=2),
        PodBound(pod="p", node="n1", attempt=2),
    )
    assert [claim.devices for claim in view.take_due()] == [("GPU-b",)]


def adopted(*, attempt: int, running: bool, device: str = "GPU-a") -> PodAdopted:
    """Return an event that adopts pod `p` with a share of this device. The share was read from
    Apportion's annotation on the pod, or from HAMi's if `attempt` is 0."""
    shares = placed("p", device).shares
    return PodAdopted(
        pod="p", node="n1", submitted=pod("p", ask(1024)), attempt=attempt, shares=shares,
        evidence="apportion.dev/shares" if attempt else "hami.io/vgpu-devices-allocated",
        running=running,
    )  # fmt: skip


def test_annotations_alone_give_a_pod_nothing_on_a_kubelets_node() -> None:
    """On a node with a kubelet, the agent does not trust the annotations of an adopted pod alone.
    The pod gets its shares if it is running under one of our placement attempts, or if the agent
    knows a placement with the same attempt and shares."""

    def gets(*events: Payload) -> bool:
        return "p" in folded(*events, remember=True).nodes["n1"].held

    assert gets(adopted(attempt=1, running=True))
    assert not gets(adopted(attempt=1, running=False))
    assert not gets(adopted(attempt=0, running=True))
    given_up = (placed("p", "GPU-a"), PlacementVoided(pod="p", node="n1", attempt=1, reason="late"))
    assert gets(*given_up, adopted(attempt=1, running=False))
    assert not gets(*given_up, adopted(attempt=1, running=False, device="GPU-b"))
    assert not gets(*given_up, adopted(attempt=2, running=False))


def test_a_pod_that_is_taken_back_is_answered_for_again() -> None:
    """If a bound pod is adopted, the agent has to allocate the pod's devices again, even if it has
    already begun to allocate them."""
    view = folded(placed("p", "GPU-a"), BOUND)
    back = adopted(attempt=1, running=False)
    view.apply(record_of(3, back), event_of(back, "id-3"))
    (claim,) = view.take_due()
    # the claim was not taken yet, so its answer will follow the adoption
    assert claim.bound_revision == 2
    view.apply(record_of(4, back), event_of(back, "id-4"))
    (claim,) = view.take_due()
    assert (claim.devices, claim.bound_revision) == (("GPU-a",), 4)


def test_what_was_adopted_before_a_snapshot_is_judged_alike() -> None:
    """An agent that starts from a snapshot gives an adopted pod shares only if the pod is running
    and was placed by Apportion (`attempt` is not 0)."""
    for data, gets in (
        (adopted(attempt=1, running=True), True),
        (adopted(attempt=1, running=False), False),
        (adopted(attempt=0, running=True), False),
    ):
        view = FleetView(["n1"], remember=True)
        view.begin(Ledger(node("n1", gpu("GPU-a")), data).state)
        assert ("p" in view.nodes["n1"].held) is gets


def test_a_pod_that_is_there_is_not_forgotten_for_all_that_came_since() -> None:
    """The agent remembers at most HELD_MAX pods and drops the oldest first. It never drops a pod
    that still exists."""
    view = FleetView(["n1"], remember=True)
    view.nodes["n1"].there = frozenset({"old"})
    revision = 0
    for name in ("old", "over", *(f"p-{number}" for number in range(HELD_MAX))):
        for data in (placed(name, "GPU-a"), PodBound(pod=name, node="n1", attempt=1)):
            revision += 1
            view.apply(record_of(revision, data), event_of(data, f"id-{revision}"))
    held = view.nodes["n1"].held
    assert "old" in held
    assert len(held) == HELD_MAX
    assert not {"over", "p-0"} & held.keys()
    assert f"p-{HELD_MAX - 1}" in held


def test_inventory_is_the_last_report_with_the_health_since() -> None:
    """The agent folds a node's inventory from the last report and the health changes after it. It
    ignores health changes before the first report."""
    report = NodeReported(
        node="n1", devices=simulated_devices("n1", "2xT4"), host=Host(cpu_milli=1, memory_mib=1)
    )
    second = report.devices[1]
    view = folded(
        DeviceHealthChanged(node="n1", device=second.id, healthy=False, reason="before any report"),
        report,
        DeviceHealthChanged(node="n1", device=second.id, healthy=False, reason="hot"),
    ).nodes["n1"]
    failed = msgspec.structs.replace(second, healthy=False, health_reason="hot")
    assert view.said == msgspec.structs.replace(report, devices=(report.devices[0], failed))
    assert (view.said_revision, view.said_id) == (3, "id-3")


def test_the_configuration_is_taken_whole_and_never_a_wrong_one() -> None:
    """The agent uses the newest valid configuration event and ignores an invalid one."""
    split = Configuration(nvidia=NvidiaConfiguration(device_split_count=4))
    wrong = Configuration(nvidia=NvidiaConfiguration(resource_memory_name="nvidia.com/gpu"))
    view = folded(
        ConfigurationChanged(by="ada", configuration=split),
        ConfigurationChanged(by="eve", configuration=wrong),
    )
    assert view.configuration == split
    assert view.configured.is_set()
    assert view.refused_count == 1
