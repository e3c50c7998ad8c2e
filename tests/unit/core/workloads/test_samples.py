"""Tests that every sample manifest is read as its original system would read it."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from apportion.core.workloads.kinds.drafts import Manifest
from apportion.core.workloads.reading import read_document
from apportion.runtime.files.manifests import Document, read_manifest_files
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    NodeConstraints,
    Plugin,
    PodGroupObserved,
    Toleration,
)

SAMPLES = Path(__file__).resolve().parents[4] / "examples" / "pods"
GIB = 1024
PLUGINS: dict[str, Plugin] = {
    "plain": "hami", "hami": "hami", "ascend": "hami", "volcano-vgpu": "volcano"
}  # fmt: skip


class Pods(NamedTuple):
    """The expected content of a sample document: a number of identical pods, and their gang."""

    dialect: str
    asks: tuple[Ask, ...]
    devices: DeviceConstraints = DeviceConstraints()
    node: NodeConstraints = NodeConstraints()
    names: tuple[str, ...] = ()
    group: PodGroupObserved | None = None
    high_priority: tuple[str, ...] = ()


def gpu(container: str = "main", **fields: Any) -> Ask:
    return Ask(container=container, family="nvidia", **fields)


def mode(name: Any) -> DeviceConstraints:
    return DeviceConstraints(modes=(name,))


def gang(name: str, pods: int) -> PodGroupObserved:
    return PodGroupObserved(group=f"default/{name}", min_available=pods, queue="training")


def host(cpus: int, gib: int) -> NodeConstraints:
    return NodeConstraints(cpu_milli=cpus * 1000, memory_mib=gib * GIB)


EXPECTED: dict[str, tuple[Pods, ...]] = {
    "volcano-vgpu-hami-core": (
        Pods("volcano-vgpu", (gpu(memory_mib=3000, cores=50, cap_memory=True),), mode("hami-core")),
    ),
    "dynamic-mig": (Pods("volcano-vgpu", (gpu(memory_mib=3000, cap_memory=True),), mode("mig")),),
    "volcano-vgpu-percentage": (Pods("volcano-vgpu", (gpu(memory_percent=25),)),),
    "volcano-vgpu-any-mode": (Pods("volcano-vgpu", (gpu(memory_mib=4096, cap_memory=True),)),),
    "vcuda-exclusive": (Pods("tencent.com/vcuda", (gpu(count=2, cores=100),)),),
    "vcuda-shared": (Pods("docker.com/vcuda", (gpu(memory_mib=2560, cores=20),), node=host(2, 2)),),
    "volcano-gpu-sharing-job": (
        Pods(
            "volcano-share",
            (gpu("inference", memory_mib=4096),),
            node=host(2, 4),
            names=("gpu-sharing-job-inference-0", "gpu-sharing-job-inference-1"),
            group=gang("gpu-sharing-job", 2),
        ),
    ),
    "volcano-gpu-number": (Pods("volcano-share", (gpu(cores=100),)),),
    "volcano-vgpu-job": (
        Pods(
            "volcano-vgpu",
            (gpu("trainer", memory_mib=4096, cap_memory=True),),
            mode("hami-core"),
            host(8, 32),
            ("vgpu-training-trainer-0",),
            gang("vgpu-training", 1),
        ),
    ),
    "volcano-vgpu-mps": (
        Pods("volcano-vgpu", (gpu(memory_mib=8000, cores=25, cap_memory=True),), mode("mps")),
    ),
    "ascend-310p": (
        Pods("ascend", (Ask(container="main", family="ascend310p", memory_mib=6144),)),
    ),
    "distributed-job": (
        Pods(
            "plain",
            (gpu("worker", count=2, cores=100),),
            node=host(8, 32),
            names=tuple(f"distributed-gpu-training-worker-{i}" for i in range(4)),
            group=gang("distributed-gpu-training", 4),
        ),
    ),
    "multi-gpu-job": (
        Pods(
            "plain",
            (gpu("trainer", count=4, cores=100),),
            node=host(16, 64),
            names=("multi-gpu-training-trainer-0",),
            group=gang("multi-gpu-training", 1),
        ),
    ),
    "gpu-types": (
        Pods("plain", (gpu(cores=100),), DeviceConstraints(use_types=("A100", "V100"))),
        Pods("plain", (gpu(cores=100),), DeviceConstraints(nouse_types=("T4",))),
        Pods("volcano-share", (gpu(count=2, cores=100),), DeviceConstraints(indexes=(0, 2))),
    ),
    "hami-percentage-priority": (Pods("hami", (gpu(memory_percent=50),), high_priority=("main",)),),
    "hami": (Pods("hami", (gpu(memory_mib=3000, cores=30),)),),
    "hami-defaults": (Pods("hami", (gpu(memory_mib=5000),)),),
    "hami-two-containers": (
        Pods(
            "hami",
            (gpu("train", memory_mib=10000, cores=50), gpu("eval", memory_mib=2000)),
            node=NodeConstraints(cpu_milli=100),
        ),
    ),
    "volcano-two-vgpus": (
        Pods(
            "volcano-vgpu",
            (gpu(count=2, memory_mib=3000, cores=50, cap_memory=True),),
            node=NodeConstraints(
                tolerations=(
                    Toleration(key="volcano.sh/vgpu", operator="Exists", effect="NoSchedule"),
                )
            ),
        ),
    ),
    "whole-gpus": (Pods("plain", (gpu(count=2, cores=100),)),),
}


def documents(name: str) -> list[Manifest]:
    """Return the pods and gangs read from one sample file, as `submit` reads them."""
    found = list(read_manifest_files([str(SAMPLES / f"{name}.yaml")], io.BytesIO()))
    problems = [each for each in found if not isinstance(each, Document)]
    assert not problems
    return [read_document(each.content) for each in found if isinstance(each, Document)]


def test_every_sample_is_expected() -> None:
    """Every sample manifest has an expected result in this module."""
    assert sorted(EXPECTED) == sorted(path.stem for path in SAMPLES.iterdir())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_sample(name: str) -> None:
    """Every sample is read with the expected dialect, requests, constraints, gang and pod names."""
    manifests = documents(name)
    assert len(manifests) == len(EXPECTED[name])
    for manifest, wanted in zip(manifests, EXPECTED[name], strict=True):
        names = wanted.names or (manifest.name,)
        assert tuple(pod.name for pod in manifest.pods) == names
        assert manifest.groups == ((wanted.group,) if wanted.group else ())
        for pod in manifest.pods:
            assert pod.dialect == wanted.dialect
            assert pod.shape.asks == wanted.asks
            plugin = PLUGINS.get(wanted.dialect, "")
            assert pod.shape.devices == structs.replace(wanted.devices, plugin=plugin)
            assert pod.shape.node == wanted.node
            assert pod.high_priority == wanted.high_priority
            assert pod.scheduler_name == "apportion"
            assert pod.group == (wanted.group.group if wanted.group else "")
