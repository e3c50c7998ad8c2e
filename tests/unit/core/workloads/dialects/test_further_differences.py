"""Tests of pods that Apportion treats differently from HAMi and Volcano.

The cases come from the test suites of these systems. The test names refer to the rows from G12 on
in docs/reference/compatibility.md."""

from msgspec import structs

from apportion.core.workloads.adoption.recovery import recover
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod, PlacedPod
from apportion.core.workloads.dialects.listing import render
from apportion_schemas import Ask
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.pods import ask, shape, share
from tests.support.pods import placed as placement
from tests.support.pods import pod as submitted

MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}


MLU = {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 4}


def test_G12_containers_have_devices_of_different_vendors() -> None:
    """The containers of a pod may request devices of different vendors. The pod then gets HAMi's
    annotations for each of these vendors."""
    document = pod(containers=[container("a", GPU), container("b", MLU)])
    found = draft(document)
    assert [ask.family for ask in found.shape.asks] == ["nvidia", "cambricon"]
    wanted = submitted("p", shape=found.shape, dialect=found.dialect)
    wanted = structs.replace(wanted, containers=("a", "b"))
    mlu = structs.replace(gpu("m0"), family="cambricon", model="MLU370-X8")
    ledger = Ledger(node("n1", gpu("g0"), mlu)).submit(wanted).settle()
    assert ledger.devices("p") == ["g0", "m0"]
    devices = {each.device.id: each.device for each in ledger.node().devices}
    notes = render(PlacedPod(wanted, ledger.placement("p"), devices, 0, DialectConfig()))
    assert notes["hami.io/vgpu-devices-allocated"] == "g0,NVIDIA,1000,0:;;"
    assert notes["hami.io/cambricon-mlu-devices-allocated"] == ";m0,MLU,1024,100:;"


def test_G12_devices_of_all_vendors_are_read_back_or_none() -> None:
    """If a bound pod has devices of two vendors, both annotations must be readable. Otherwise the
    devices of one vendor would look free."""
    found = draft(pod(containers=[container("a", GPU), container("b", MLU)]))
    gpus = {"hami.io/vgpu-devices-allocated": "g0,NVIDIA,1000,0:;;"}
    mlus = {"hami.io/cambricon-mlu-devices-allocated": ";m0,MLU,1024,100:;"}

    def held(notes: dict[str, str]) -> list[str] | None:
        bound = BoundPod(notes, (), ("a", "b"), found.shape.asks, DialectConfig())
        read = recover(bound)
        return [each.device for each in read.held] if read else None

    assert held(gpus | mlus) == ["g0", "m0"]
    assert held(gpus | {"hami.io/cambricon-mlu-devices-allocated": ";m0,MLU,1024:;"}) is None
    assert held(gpus) is None


def test_G12_a_container_has_devices_of_one_vendor() -> None:
    """A container that requests devices of two vendors is refused. A pod with devices of several
    vendors is refused if an annotation chooses among the devices of one vendor."""
    error = refused(pod(containers=[container("a", GPU | MLU)]))
    assert error.field == 'spec.containers[0].resources.limits["cambricon.com/vmlu"]'
    assert "nvidia.com/gpu" in error.problem
    both = [container("a", GPU), container("b", MLU)]
    error = refused(pod(annotations={"nvidia.com/use-gputype": "T4"}, containers=both))
    assert error.field == 'metadata.annotations["nvidia.com/use-gputype"]'
    mixed = [container("a", {"volcano.sh/vgpu-number": 1}), container("b", MLU)]
    assert refused(pod(containers=mixed)).field.startswith("spec.containers[1].resources.limits")


def test_G13_no_memory_of_an_npu_is_all_of_it() -> None:
    """An NPU request without memory gets a whole NPU. A request for parts of several NPUs is
    refused."""
    whole = Ask(container="main", family="ascend310p", cores=100)
    named = {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 0}
    assert asks(pod(named)) == (whole,)
    parts = {"huawei.com/Ascend310P": 2, "huawei.com/Ascend310P-memory": 3072}
    assert (
        refused(pod(parts)).field
        == 'spec.containers[0].resources.limits["huawei.com/Ascend310P-memory"]'
    )


def test_G14_of_equal_devices_the_first_and_spread_by_holders() -> None:
    """Of equal devices, a pod gets the first. The policy `spread` prefers the device with fewer
    pods, not the one with less memory in use."""
    held = (
        submitted("x", ask(70_000)), placement("x", "n1", [share("g0", 70_000)]),
        submitted("y", ask(1)), placement("y", "n1", [share("g1", 1)]),
        submitted("z", ask(1)), placement("z", "n1", [share("g1", 1)]),
    )  # fmt: skip
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1", index=1)), *held)
    ledger.submit(submitted("p", shape=shape(ask(1000), device_policy="spread"))).settle()
    assert ledger.devices("p") == ["g0"]
    empty = Ledger(node("n1", gpu("g0"), gpu("g1", index=1)))
    empty.submit(submitted("p", ask(1000))).settle()
    assert empty.devices("p") == ["g0"]


def test_G15_pods_are_kept_off_shared_cards_by_asking_for_idle_ones() -> None:
    """Equal labels do not keep two pods off one device. A pod gets an idle device only if it
    requests one by the policy `mutex`."""
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1", index=1)))
    labels = {"team": "a"}
    for uid in ("a", "b"):
        ledger.submit(submitted(uid, shape=draft(pod(GPU)).shape, labels=labels)).settle()
    assert ledger.devices("a") == ledger.devices("b") == ["g0"]
    alone = draft(pod(GPU, MUTEX))
    ledger.submit(submitted("c", shape=alone.shape, labels=labels)).settle()
    assert ledger.devices("c") == ["g1"]
