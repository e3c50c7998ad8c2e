"""Tests of the agent's usage metrics, both under our names and under those that existing dashboards
expect."""

from prometheus_client.parser import text_string_to_metric_families

from apportion.agent.backend import Load
from apportion.agent.usage.names import Names, Seen, families, samples
from apportion.agent.usage.owners import Owner
from apportion.agent.usage.uses import Look, Unshared, Use
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import MigInstance
from tests.unit.agent.usage.test_uses import CARD, CUT, MIB, card

Series = dict[tuple[str, str], float]


def use(cut: MigInstance | None = None, kinds: tuple[int, int, int] | None = None) -> Use:
    """Return a usage sample of a container that stays below its limits of 700 MiB and 30 %."""
    limits = 700 * MIB, 600 * MIB, 30, 25
    idle_s = None if kinds is None else 4.0
    return Use("uid-1", "default", "train", "main", 0, CARD, cut, *limits, kinds, idle_s)


def scraped(look: Look, *also: Names) -> Series:
    """Scrape the metrics. The keys of the result are a metric's name and its label values, joined
    by `/`."""
    metrics = Metrics()
    seen = Seen("n1", {CARD: card()}, look)
    metrics.looked_up(families(also), lambda: samples(seen, also))
    found = {}
    ours = {family.name for family in families(also)}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name in ours:
                labels = "/".join(value for _, value in sorted(sample.labels.items()))
                found[sample.name, labels] = sample.value
    return found


def test_a_scrape_tells_what_is_held_and_used() -> None:
    """A scrape reports limits and usage per container, usage per GPU and memory of programs without
    a share. Compute is a ratio from 0 to 1."""
    stranger = Unshared(CARD, 7, Owner("", "", 7, "Xorg"), MIB)
    look = Look((use(CUT),), (Load(CARD, 900 * MIB, 40), Load(CARD, MIB, 1, CUT)), (stranger,))
    own = f"main/{CARD}/1g.5gb from slice 2/default/train"
    assert scraped(look) == {
        ("apportion_container_memory_limit_bytes", own): 700 * MIB,
        ("apportion_container_memory_used_bytes", own): 600 * MIB,
        ("apportion_container_cores_limit_ratio", own): 0.3,
        ("apportion_container_cores_used_ratio", own): 0.25,
        ("apportion_device_memory_used_bytes", CARD): 900 * MIB,
        ("apportion_device_cores_used_ratio", CARD): 0.4,
        ("apportion_unshared_memory_bytes", f"Xorg/{CARD}/7/"): MIB,
    }


def test_what_nobody_tells_has_no_series() -> None:
    """If compute usage is unknown, its series is absent, not zero."""
    found = scraped(Look((), (Load(CARD, 0, None),)), "hami", "volcano")
    names = {name for name, _ in found}
    assert not {name for name in names if "cores" in name or "tilization" in name}


def test_B6_dashboards_of_hami_find_their_names() -> None:
    """If HAMi's metric names are enabled, a scrape also has HAMi's metrics, with HAMi's labels and
    percentages."""
    found = scraped(Look((use(kinds=(1, 2, 3)),), (Load(CARD, 900 * MIB, 40),)), "hami")
    labels = f"main/{CARD}/default/train/0"
    assert found["hami_vgpu_memory_limit_bytes", labels] == 700 * MIB
    assert found["hami_vgpu_memory_used_bytes", labels] == 600 * MIB
    assert found["hami_container_device_memory_bytes", labels] == 600 * MIB
    assert found["hami_container_device_utilization_ratio", labels] == 25
    assert found["hami_container_last_kernel_elapsed_seconds", labels] == 4
    assert found["hami_vgpu_memory_context_bytes", labels] == 1
    assert found["hami_vgpu_memory_module_bytes", labels] == 2
    assert found["hami_vgpu_memory_buffer_bytes", labels] == 3
    host = f"0/NVIDIA A100/{CARD}/n1"
    assert found["hami_host_gpu_memory_used_bytes", host] == 900 * MIB
    assert found["hami_host_gpu_utilization_ratio", host] == 40


def test_A9_dashboards_of_volcanos_plugin_find_their_names() -> None:
    """If Volcano's metric names are enabled, a scrape also has the metrics of Volcano's device
    plugin, with the plugin's labels and kinds of memory."""
    found = scraped(Look((use(kinds=(1, 2, 3)),), (Load(CARD, 900 * MIB, 40),)), "volcano")
    labels = f"main/{CARD}/train/default/0/vGPU"
    assert found["vGPU_device_memory_limit_in_bytes", labels] == 700 * MIB
    assert found["vGPU_device_memory_usage_in_bytes", labels] == 600 * MIB
    assert found["Device_utilization_desc_of_container", labels] == 25
    assert found["Device_last_kernel_of_container", labels] == 4
    described = f"1/main/3/{CARD}/2/0/train/default/0/vGPU"
    assert found["Device_memory_desc_of_container", described] == 600 * MIB
    assert found["HostGPUMemoryUsage", f"0/{CARD}/vGPU"] == 900 * MIB
    assert found["HostCoreUtilization", f"0/{CARD}/vGPU"] == 40


def test_B6_dashboards_of_gpu_manager_find_their_names() -> None:
    """If GPU Manager's metric names are enabled, a scrape also has GPU Manager's metrics in MiB,
    per GPU and in total."""
    found = scraped(Look((use(), use()._replace(position=1))), "gpu-manager")
    assert found["container_gpu_memory_total", "main/gpu0/default/n1/train"] == 600
    assert found["container_gpu_memory_total", "main/total/default/n1/train"] == 1_200
    assert found["container_gpu_utilization", "main/total/default/n1/train"] == 50
    assert found["container_request_gpu_memory", "main/default/n1/train/total"] == 1_400
    assert found["container_request_gpu_utilization", "main/default/n1/train/total"] == 0.6
