"""From a manifest to a process on a node: a real API server, a real kubelet, and all services."""

from typing import Any

import pytest

from apportion_schemas import NodeReported, PodBound, PodPlaced, Share, SharesAllocated
from tests.support.control_plane import ROOT
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import agent_options
from tests.support.real_kubelet import RealKubelet

PODS = ROOT / "examples" / "pods"
COUNTED = (
    "A1-volcano-vgpu-hami-core",
    "A6-volcano-vgpu-percentage",
    "A7-volcano-vgpu-any-mode",
    "C2-volcano-gpu-number",
    "D1-hami",
    "D1-hami-percentage-priority",
    "D3-hami-two-containers",
    "E3-volcano-two-vgpus",
    "E4-whole-cards",
)
"""The samples for NVIDIA's cards that are pods and ask by a name that counts devices. The webhook
gives one to the pod that has none (D3-hami-defaults).
"""


@pytest.mark.timeout(300)
async def test_A1_every_sample_starts_with_what_the_ledger_decided(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """Each container sees its cards and its limits, and its process has them in its environment."""
    await world.start("agent", *agent_options(kubelet, "8xA100-80GB"))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    for manifest in COUNTED:
        await world.plane.user("create", "-f", str(PODS / f"{manifest}.yaml"))
    await world.facts.count(SharesAllocated, len(COUNTED))
    placed = world.facts.of(PodPlaced)
    assert len(placed) == len(COUNTED)
    (report,) = world.facts.of(NodeReported)
    order = {device.id: device.index for device in report.devices}
    for event in placed:
        for container in {share.container for share in event.shares}:
            made = await kubelet.made(event.name, container)
            own = [share for share in event.shares if share.container == container]
            own.sort(key=lambda share: order[share.device])
            assert limits_of(made["env"]) == limits_of(wanted(own)), event.name
            assert "/usr/local/vgpu" in made["mounts"], event.name
    assert len(world.facts.of(PodBound)) == len(world.facts.of(SharesAllocated)) == len(COUNTED)
    await idle(kubelet)
    await kubelet.offered("nvidia.com/gpu", 80)


def wanted(shares: list[Share]) -> dict[str, str]:
    """What a container with these shares is to have, in HAMi's words."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{s.memory_mib}m" for at, s in enumerate(shares)}
    visible = ",".join(share.device for share in shares)
    return env | {"NVIDIA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_SM_LIMIT": str(shares[0].cores)}


def limits_of(env: dict[str, str]) -> dict[str, str]:
    """The variables that say which cards and how much of them."""
    told = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT")
    return {
        name: value
        for name, value in env.items()
        if name in told or name.startswith("CUDA_DEVICE_MEMORY_LIMIT_")
    }


async def idle(kubelet: RealKubelet) -> None:
    """The container that asks for no device has none of this, and the high one is first."""
    made = await kubelet.made("two-containers", "log")
    assert limits_of(made["env"]) == {}
    high: dict[str, Any] = (await kubelet.made("gpu-pod-high", "main"))["env"]
    assert high["CUDA_TASK_PRIORITY"] == "0"
