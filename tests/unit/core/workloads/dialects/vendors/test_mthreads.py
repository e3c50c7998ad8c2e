"""Unit tests of `core/workloads/dialects/vendors/mthreads.py`."""

from typing import Any

import pytest

from apportion.core.devices.simulating import simulated_devices
from apportion.core.placement.limits import quotas
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.dialects.vendors.mthreads import DIALECT
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, Configuration, DeviceConstraints, QuotaObserved, RefusalCode
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, NOW_S, ledger, place, sample, written

COUNT = "mthreads.com/vgpu"
MEMORY, CORES = "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
ALLOCATED = "hami.io/mthreads-vgpu-devices-allocated"


def amounts(count: object, memory: object = None, cores: object = None) -> dict[str, object]:
    """Return resource limits with these amounts of Moore Threads GPUs; None leaves one out."""
    said = {COUNT: count, MEMORY: memory, CORES: cores}
    return {name: amount for name, amount in said.items() if amount is not None}


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (amounts(1), {"cores": 100}),
        (amounts(1, 32), {"memory_mib": 16384}),
        (amounts(1, 2, 1), {"memory_mib": 1024, "cores": 7}),
        (amounts(1, 64, 8), {"memory_mib": 32768, "cores": 50}),
        (amounts(1, 4, 16), {"memory_mib": 2048, "cores": 100}),
        (amounts(1, 96), {"memory_mib": 49152}),
        (amounts(1, 96, 16), {"cores": 100}),
        (amounts(1, None, 16), {"cores": 100}),
        (amounts(2), {"count": 2, "cores": 100}),
        (amounts(2, 192, 32), {"count": 2, "cores": 100}),
        (amounts(3, 288), {"count": 3, "cores": 100}),
        ({MEMORY: 4, CORES: 2}, None),
    ],
)
def test_asks(limits: dict[str, object], wanted: dict[str, Any] | None) -> None:
    """Memory is in units of 512 MiB. A number of cores is converted to percent of a GPU's 16 cores,
    and rounded up.

    The amounts that HAMi's webhook adds to a request for whole GPUs do not change that request."""
    family = "mthreads"
    expected = () if wanted is None else (Ask(container="main", family=family, **wanted),)
    assert asks(pod(limits)) == expected


@pytest.mark.parametrize(
    ("limits", "name", "says"),
    [
        (amounts(0), COUNT, "between 1 and"),
        (amounts(1, 0), MEMORY, "2,4,8,16,32,64,96"),
        (amounts(1, 3), MEMORY, "2,4,8,16,32,64,96"),
        (amounts(1, 128), MEMORY, "2,4,8,16,32,64,96"),
        (amounts(1, 4, 17), CORES, "at most 16"),
        (amounts(1, None, 8), CORES, "part of a GPU"),
        (amounts(2, 64), MEMORY, "part of a GPU"),
        (amounts(2, None, 16), CORES, "part of a GPU"),
    ],
)
def test_refusals(limits: dict[str, object], name: str, says: str) -> None:
    """An amount that the plugin does not support is refused. So is an amount that HAMi's webhook
    would replace."""
    error = refused(pod(limits))
    assert error.field == f'spec.containers[0].resources.limits["{name}"]'
    assert says in str(error)


def test_only_one_container_has_gpus() -> None:
    """A pod is refused if two of its containers request Moore Threads GPUs, because HAMi would put
    both on the same GPU. A third container may request another vendor's device.

    An init container uses the GPU of the app container."""
    one, two = container("a", amounts(1, 4)), container("b", amounts(1, 8))
    assert refused(pod(containers=[one, two])).field == "spec.containers[1].resources"
    other = container("c", {"hygon.com/dcunum": 1})
    assert refused(pod(containers=[other, one, two])).field == "spec.containers[2].resources"
    assert len(asks(pod(containers=[other, two]))) == 2
    (ask,) = asks(pod(containers=[two], initContainers=[one]))
    assert (ask.container, ask.memory_mib) == ("b", 4096)


def test_devices_are_chosen_by_id() -> None:
    """The annotations that select and exclude GPUs by id are in the domain mthreads.ai."""
    chosen = {"mthreads.ai/use-gpuuuid": "a", "mthreads.ai/nouse-gpuuuid": "c"}
    found = draft(pod(amounts(1), chosen)).shape.devices
    assert found == DeviceConstraints(use_ids=("a",), nouse_ids=("c",), plugin="hami")


def test_the_plugin_counts_cores_and_units() -> None:
    """The plugin reports only a node's total cores and total memory. Like HAMi, Apportion offers
    one GPU per 16 cores, rounded up. All GPUs have the same memory."""
    found = registration(vendor_node({}, {CORES: 40, MEMORY: 240, COUNT: 3}))
    assert (found.plugin, found.problem) == ("hami", "")
    assert [each.id for each in found.devices] == [f"n1-mthreads-{at}" for at in range(3)]
    assert {(d.memory_mib, d.cores, d.slots, d.model) for d in found.devices} == {
        (49152, 16, 100, "Mthreads")
    }
    assert not registration(vendor_node({}, {COUNT: 8})).devices
    assert "at most" in registration(vendor_node({}, {CORES: 16 * 65})).problem


def test_simulated_devices_have_sixteen_cores() -> None:
    """A simulated GPU has 16 cores, as in HAMi."""
    (device,) = simulated_devices("n1", "1xS4000")
    assert (device.cores, device.memory_mib, device.mode) == (16, 49152, "hami-core")


def test_annotations_of_a_share() -> None:
    """The sample's pod gets the annotations that HAMi writes, with the number of cores."""
    document = sample("moore-threads")
    found = written(place(ledger(VENDORS["mthreads"].node), "p", document), "p")
    index = found["mthreads.com/gpu-index"]
    assert found == BOUND | {
        ALLOCATED: f"n1-mthreads-{index},Mthreads,16384,8:;",
        "mthreads.com/gpu-index": index,
        "mthreads.com/predicate-node": "n1",
        "mthreads.com/predicate-time": str(NOW_S * 10**9),
    }


def test_annotations_of_whole_gpus() -> None:
    """If a pod requests several GPUs, their number is in the annotation that HAMi's webhook
    sets."""
    containers = [container("a"), container("b", amounts(2))]
    found = written(place(ledger(VENDORS["mthreads"].node), "p", pod(containers=containers)), "p")
    first, second = found["mthreads.com/gpu-index"].split(",")
    assert found["mthreads.com/request-gpu-num"] == "2"
    ids = (f"n1-mthreads-{first}", f"n1-mthreads-{second}")
    assert found[ALLOCATED] == ";" + "".join(f"{name},Mthreads,49152,16:" for name in ids) + ";"


def test_cores_of_shares_add_up() -> None:
    """A GPU takes shares of one core until all 16 cores are used. After that, it does not even take
    a share without cores."""
    here = ledger(vendor_node({}, {CORES: 16, MEMORY: 96}))
    for number in range(17):
        place(here, f"p{number}", pod(amounts(1, 2, 1)))
    assert [bool(here.where(f"p{number}")) for number in range(17)] == [True] * 16 + [False]
    place(here, "q", pod(amounts(1, 2)))
    assert here.reasons("q") == {RefusalCode.CORES_INSUFFICIENT: 1}


def test_a_quota_counts_cores() -> None:
    """A quota on `sgpu-core` counts cores. A whole GPU counts as 16 cores."""
    here = place(ledger(VENDORS["mthreads"].node), "p", pod(amounts(2)))
    held = quotas.of_shares(here.pod("p").submitted.shape, here.shares("p"), here.node())
    for most, exceeded in ((32, False), (31, True)):
        hard = {f"limits.{CORES}": most}
        quota = quotas.NamespaceQuota(
            QuotaObserved(namespace="n", quota="q", hard=hard), Configuration()
        )
        assert (quota.exceeded({}, held) is not None) is exceeded


def test_no_lock_and_a_fixed_section() -> None:
    """The plugin needs no node lock.

    In HAMi's configuration, only the vendor's usual resource names are accepted."""
    assert not DIALECT.locks
    check = DIALECT.sections["mthreads"]
    assert check({"resourceCountName": COUNT, "resourceCoreName": CORES}, "mthreads")
    with pytest.raises(ManifestError) as caught:
        check({"resourceMemoryName": "example.com/memory"}, "mthreads")
    assert caught.value.field == "mthreads.resourceMemoryName"
