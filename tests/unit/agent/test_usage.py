"""What containers use, as a scrape tells it: from their regions, by the names of the ledger."""

import struct
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from apportion.agent.hands.files import SharedFile
from apportion.agent.hands.regions import Regions
from apportion.agent.usage import Usage
from apportion.agent.view import Claim, NodeView
from apportion.core.grants import RegionPlan
from apportion.runtime.process.metrics import Metrics
from tests.unit.agent.events import placed

PROCESSES, COUNT = 1856, 2_008_896
"""Offsets of HAMi-core 1.2."""


def node(folder: Path) -> tuple[Regions, NodeView]:
    """Pod `uid-1` with 700 MiB and 30 percent of one card, and a region of a pod unheard of."""
    regions, view = Regions(folder), NodeView()
    for pod in ("uid-1", "uid-2"):
        path = str(folder / f"{pod}_main" / "share.cache")
        regions.ensure(RegionPlan(path, ("GPU-1",), (700 << 20,), (30,)))
    view.hold(Claim(placed("uid-1", "GPU-1"), 1))
    return regions, view


def run(folder: Path, *, mib: int, percent: int) -> None:
    """What HAMi-core writes of one process of `uid-1`."""
    with SharedFile(folder / "uid-1_main" / "share.cache") as file:
        file.write(PROCESSES, struct.pack("<ii", 7, 0))
        file.write(PROCESSES + 8 + 32, struct.pack("<Q", mib << 20))
        file.write(PROCESSES + 1160 + 16, struct.pack("<Q", percent))
        file.write(COUNT, struct.pack("<i", 1))


def told(metrics: Metrics) -> dict[tuple[str, str], float]:
    """The series of containers: by name and by the labels' values, in the order of their names."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if "container" in sample.labels:
                labels = "/".join(value for _, value in sorted(sample.labels.items()))
                found[sample.name, labels] = sample.value
    return found


def test_a_scrape_tells_what_is_held_and_used(tmp_path: Path) -> None:
    """Of pods that the ledger knows; a process that comes is in the next scrape."""
    regions, view = node(tmp_path)
    metrics = Metrics()
    Usage(regions, view).expose(metrics)
    own = "main/GPU-1/default/uid-1"
    assert told(metrics)["apportion_container_memory_used_bytes", own] == 0
    run(tmp_path, mib=600, percent=25)
    assert told(metrics) == {
        ("apportion_container_memory_limit_bytes", own): 700 << 20,
        ("apportion_container_memory_used_bytes", own): 600 << 20,
        ("apportion_container_cores_limit_ratio", own): 0.3,
        ("apportion_container_cores_used_ratio", own): 0.25,
    }


def test_B6_dashboards_of_hami_find_their_names(tmp_path: Path) -> None:
    """By a switch, with HAMi's labels."""
    regions, view = node(tmp_path)
    metrics = Metrics()
    Usage(regions, view, hami=True).expose(metrics)
    run(tmp_path, mib=600, percent=25)
    found, labels = told(metrics), "main/GPU-1/default/uid-1/0"
    assert found["hami_vgpu_memory_used_bytes", labels] == 600 << 20
    assert found["hami_container_device_utilization_ratio", labels] == 0.25


def test_what_is_gone_leaves_no_series(tmp_path: Path) -> None:
    """And a body that begins anew is asked instead of the one before."""
    regions, view = node(tmp_path)
    metrics = Metrics()
    Usage(regions, view).expose(metrics)
    view.let_go("uid-1")
    assert told(metrics) == {}
    Usage(*node(tmp_path / "other")).expose(metrics)
    assert len(told(metrics)) == 4
