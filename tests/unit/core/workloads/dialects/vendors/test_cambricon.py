"""Tests of Cambricon, the example of an added vendor, from manifest to placement."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from apportion.core.devices.simulating import simulated_devices
from apportion.core.workloads.dialects.dialect import PlacedPod
from apportion.core.workloads.dialects.listing import render
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import Ask, DeviceConstraints, Host, NodeReported, RefusalCode
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.manifests import asks, draft, pod, refused
from tests.support.pods import pod as submitted
from tests.support.pods import shape
from tests.support.vendor_nodes import vendor_node

SAMPLE = Path(__file__).resolve().parents[6] / "examples" / "vendors" / "cambricon-mlu.yaml"
COUNT = "cambricon.com/vmlu"
MEMORY, CORES = "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"


def mlu(count: object = None, memory: object = None, cores: object = None) -> dict[str, Any]:
    amounts = {COUNT: count, MEMORY: memory, CORES: cores}
    return pod({name: amount for name, amount in amounts.items() if amount is not None})


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", family="cambricon", **fields),)


def ledger() -> Ledger:
    """Return a ledger with two nodes, each with two simulated Cambricon MLUs. The nodes have
    different MLU models."""
    host = Host(cpu_milli=64_000, memory_mib=262_144)
    reports = (
        NodeReported(node=name, devices=simulated_devices(name, spec), host=host)
        for name, spec in (("mlu-1", "2xMLU370-X8"), ("mlu-2", "2xMLU590-M9"))
    )
    return Ledger(*reports)


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (mlu(1, 20, 10), ask(memory_mib=5120, cores=10)),
        (mlu(2), ask(count=2, cores=100)),
        (mlu(1, None, 30), ask(cores=30)),
        (mlu(None, 4), ask(memory_mib=1024, cores=100)),
        (mlu(1, 20), ask(memory_mib=5120, cores=100)),
        (mlu(1, 20, 0), ask(memory_mib=5120)),
        (mlu(1, 0, 0), ask(cores=100)),
        (mlu(1, 4, 101), ask(memory_mib=1024, cores=100)),
        (mlu(0, 4), ()),
        (mlu(0), ()),
        (mlu(None, 0), ()),
    ],
)
def test_asks(document: dict[str, Any], wanted: tuple[Ask, ...]) -> None:
    """An MLU request in any form is read in the vendor's own units."""
    assert asks(document) == wanted


@pytest.mark.parametrize(
    ("document", "resource", "says"),
    [
        (mlu(65), COUNT, "not between 1 and 64 devices"),
        (mlu(1, 1 << 17), MEMORY, "write at most 65536"),
    ],
)
def test_refusals(document: dict[str, Any], resource: str, says: str) -> None:
    """An MLU request that no MLU can meet is refused with the field's path and a fix."""
    error = refused(document)
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert says in str(error)


def test_F15_who_names_no_cores_has_the_mlu_alone() -> None:
    """A pod with an MLU but no core request gets all cores, so it uses the MLU alone. The vendor's
    plugin would give such a pod no cores."""
    both = ledger()
    for uid in ("p", "q"):
        both.submit(submitted(uid, shape=draft(mlu(1, 20)).shape, dialect="cambricon")).settle()
    held = [both.shares(uid)[0] for uid in ("p", "q")]
    assert [share.cores for share in held] == [100, 100]
    assert held[0].device != held[1].device


def test_not_beside_another_vendor(golden: Golden) -> None:
    """A container that requests MLUs cannot request another vendor's devices, nor can its pod use
    NVIDIA's annotations."""
    beside = refused(pod({COUNT: 1, "nvidia.com/gpu": 1}))
    assert beside.field == 'spec.containers[0].resources.limits["nvidia.com/gpu"]'
    assert COUNT in beside.problem
    error = refused(pod({COUNT: 1}, {"nvidia.com/use-gputype": "A100"}))
    assert error.field == 'metadata.annotations["nvidia.com/use-gputype"]'
    golden({"a container of another vendor": str(beside), "an annotation of it": str(error)})


def test_the_sample_from_manifest_to_annotations() -> None:
    """The sample manifest is read and placed on an MLU of the requested model. The pod then gets
    the annotations that HAMi would write."""
    found = draft(yaml.safe_load(SAMPLE.read_text("utf-8")))
    assert found.dialect == "cambricon"
    assert found.shape.asks == ask(memory_mib=5120, cores=10)
    assert found.shape.devices == DeviceConstraints(plugin="hami")
    here = ledger().submit(submitted("p", shape=found.shape, dialect="cambricon")).settle()
    (share,) = here.shares("p")
    assert (here.where("p"), share.memory_mib, share.cores) == ("mlu-1", 5120, 10)
    devices = {name: state.device for name, state in here.node("mlu-1").by_id.items()}
    at = PlacedPod(
        here.pod("p").submitted,
        here.placement("p"),
        devices,
        1_700_000_000 * 10**9,
        DialectConfig(),
    )
    segments = f"{share.device},MLU,5120,10:;"
    assert render(at) == {
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_PROFILE": "0_10_20",
        "hami.io/cambricon-mlu-devices-to-allocate": segments,
        "hami.io/cambricon-mlu-devices-allocated": segments,
        "hami.io/vgpu-node": "mlu-1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000000",
    }


def test_shares_fill_an_mlu() -> None:
    """An MLU takes shares until its memory or cores are used up. A request for a whole MLU needs an
    idle one."""
    here = ledger()
    for number, amount in enumerate((30_000, 19_000, 30_000, 10_000)):
        wanted = shape(
            *ask(memory_mib=amount, cores=20), devices=DeviceConstraints(use_types=("MLU370",))
        )
        here.submit(submitted(f"p{number}", shape=wanted, dialect="cambricon")).settle()
    assert here.devices("p0") == here.devices("p1")
    assert here.devices("p2") == here.devices("p3") != here.devices("p0")
    here.submit(submitted("w", shape=shape(*ask(count=2, cores=100)), dialect="cambricon"))
    here.submit(submitted("x", shape=shape(*ask(cores=100)), dialect="cambricon")).settle()
    assert here.where("w") == "mlu-2"
    assert here.reasons("x") == {RefusalCode.DEVICE_IN_USE: 2}


def test_a_node_counts_percent_and_units_of_memory() -> None:
    """Cambricon's plugin reports only a node's total percentage of cores and total memory. Like
    HAMi, Apportion offers one MLU per 100 percent, with an equal part of the memory."""
    found = registration(vendor_node({}, {CORES: 200, MEMORY: 384}))
    assert (found.plugin, found.problem) == ("hami", "")
    assert [each.id for each in found.devices] == ["n1-cambricon-mlu-0", "n1-cambricon-mlu-1"]
    assert {(each.memory_mib, each.cores, each.slots) for each in found.devices} == {
        (49152, 100, 100)
    }
    assert registration(vendor_node({}, {})).devices == ()
