"""Tests of the metrics about allocated devices, under our names and under those of HAMi and
Volcano."""

from prometheus_client.parser import text_string_to_metric_families

from apportion.runtime.process.metrics import Metrics
from apportion.scheduler.device_metrics import Names, expose
from tests.support.fleet import gpu, node
from tests.support.ledger_of import replayed
from tests.support.pods import ask, placed, pod, share

MIB = 1 << 20
SERIES = ("apportion_device", "hami", "volcano_vgpu", "GPUDevice", "nodeGPU", "vGPU")
CARD = gpu("g0", memory_mib=10_000, physical_memory_mib=10_000, model="NVIDIA T4")


def scraped(*names: Names) -> dict[tuple[str, str], float]:
    """Return the metrics of two pods on one GPU, by metric name and label values joined by `/`."""
    state = replayed(
        node("n1", CARD),
        pod("p1", ask(2_000), name="train"),
        placed("p1", "n1", [share("g0", 2_000, 10)]),
        pod("p2", ask(500), name="train", namespace="other"),
        placed("p2", "n1", [share("g0", 500, 20)]),
    )
    metrics = Metrics()
    expose(metrics, state, names)
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith(SERIES):
                labels = "/".join(value for _, value in sorted(sample.labels.items()))
                found[sample.name, labels] = sample.value
    return found


def test_nothing_is_told_unasked() -> None:
    """By default, the scheduler has no metrics about allocated devices."""
    assert not scraped()


def test_A9_what_is_granted_is_told_by_device() -> None:
    """If Apportion's own metric names are enabled, each device's memory is in bytes and its ratios
    are from 0 to 1."""
    assert scraped("apportion") == {
        ("apportion_device_memory_bytes", "g0/n1"): 10_000 * MIB,
        ("apportion_device_memory_allocated_bytes", "g0/n1"): 2_500 * MIB,
        ("apportion_device_cores_allocated_ratio", "g0/n1"): 0.3,
        ("apportion_device_shares", "g0/n1"): 2,
    }


def test_E7_dashboards_of_volcanos_scheduler_find_their_names() -> None:
    """If Volcano's names are enabled, the metrics have MiB and percentages. Pods with the same name
    are added up, as with Volcano."""
    found = scraped("volcano")
    assert found == {
        ("volcano_vgpu_device_memory_limit", "n1/g0"): 10_000,
        ("volcano_vgpu_device_allocated_memory", "n1/g0"): 2_500,
        ("volcano_vgpu_device_allocated_cores", "n1/g0"): 30,
        ("volcano_vgpu_device_shared_number", "n1/g0"): 2,
        ("volcano_vgpu_device_memory_allocation_for_a_certain_pod", "n1/g0/train"): 2_500,
        ("volcano_vgpu_device_core_allocation_for_a_certain_pod", "n1/g0/train"): 30,
    }


def test_E7_dashboards_of_hamis_scheduler_find_their_names() -> None:
    """If HAMi's names are enabled, the metrics have HAMi's labels. Cores are in percent, and
    the allocated part of the memory is from 0 to 1."""
    found = scraped("hami")
    card = "0/NVIDIA T4/g0/n1"
    assert found["hami_gpu_memory_limit_bytes", card] == 10_000 * MIB
    assert found["hami_gpu_core_limit_ratio", card] == 100
    assert found["hami_gpu_shared_count", card] == 2
    assert found["hami_gpu_core_allocated_ratio", card] == 30
    assert found["hami_node_gpu_memory_allocated_ratio", card] == 0.25
    assert found["hami_gpu_memory_allocated_bytes", f"100/{card}"] == 2_500 * MIB
    overview = "100/0/10000/NVIDIA T4/g0/n1"
    assert found["hami_node_gpu_overview", overview] == 2_500 * MIB
    assert found["hami_vgpu_memory_allocated_bytes", "0/g0/default/n1/train"] == 2_000 * MIB
    assert found["hami_vgpu_core_allocated_ratio", "0/g0/other/n1/train"] == 20


def test_G16_dashboards_of_hami_up_to_2_8_find_their_names() -> None:
    """If HAMi's older names are enabled, the metrics have the same values as under the newer
    ones. Three more had values of their own up to HAMi 2.7."""
    old, new = scraped("hami-legacy"), scraped("hami")
    until_2_7 = {"vGPUMemoryPercentage", "vGPUCorePercentage", "vGPUPodsDeviceAllocated"}
    newer = [value for (name, _), value in old.items() if name not in until_2_7]
    assert sorted(newer) == sorted(new.values())
    assert old["vGPUMemoryPercentage", "0/g0/n1/train/default"] == 0.2
    assert old["vGPUCorePercentage", "0/g0/n1/train/other"] == 20
    assert old["vGPUPodsDeviceAllocated", "0/20/g0/n1/train/other"] == 500 * MIB
    assert ("GPUDeviceMemoryAllocated", "30/0/NVIDIA T4/g0/n1") in old
    card = "0/NVIDIA T4/g0/n1"
    assert old["GPUDeviceMemoryLimit", card] == 10_000 * MIB
    assert old["GPUDeviceSharedNum", card] == 2
    assert old["nodeGPUMemoryPercentage", card] == 0.25
    assert old["vGPUMemoryAllocated", "0/g0/n1/train/default"] == 2_000 * MIB
    assert {name for name, _ in old} == {
        "GPUDeviceMemoryLimit", "GPUDeviceCoreLimit", "GPUDeviceSharedNum",
        "GPUDeviceCoreAllocated", "GPUDeviceMemoryAllocated", "nodeGPUOverview",
        "nodeGPUMemoryPercentage", "vGPUMemoryAllocated", "vGPUCoreAllocated", *until_2_7,
    }  # fmt: skip


def test_both_at_once() -> None:
    """Several sets of metric names can be enabled at once, for example during a migration."""
    assert len(scraped("hami", "volcano", "apportion")) == len(scraped("hami")) + 6 + 4
