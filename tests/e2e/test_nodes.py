"""From a manifest to a process on a node, with a real API server, a real kubelet, and all
services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from apportion_schemas import (
    NodeReported,
    PodBound,
    PodPlaced,
    PodResized,
    ResizeAsked,
    Share,
    SharesAllocated,
)
from tests.support.control_plane import ROOT
from tests.support.kube_objects import kube_pod
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import agent_options
from tests.support.real_kubelet import RealKubelet

CARD_MIB = 15_360
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
PODS = ROOT / "examples" / "pods"
COUNTED = (
    "volcano-vgpu-hami-core",
    "volcano-vgpu-percentage",
    "volcano-vgpu-any-mode",
    "volcano-gpu-number",
    "hami",
    "hami-percentage-priority",
    "hami-two-containers",
    "volcano-two-vgpus",
    "whole-gpus",
)
"""The samples for NVIDIA's cards that are pods and ask by a name that counts devices. The webhook
gives one to the pod that has none (hami-defaults).
"""


async def test_A1_every_sample_starts_with_what_the_ledger_decided(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """The environment of each sample's containers names the devices and limits that the ledger
    records."""
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


@asynccontextmanager
async def telling(world: KubeWorld, kubelet: RealKubelet) -> AsyncIterator[None]:
    """If the `with` block fails, add the state of pods and node and the kubelet's log to the
    error."""
    try:
        yield
    except (AssertionError, TimeoutError) as error:
        pods = "jsonpath={range .items[*]}{.metadata.name}: {.status}\n{end}"
        error.add_note(await world.plane.user("get", "pods", "-o", pods))
        offered = ("-o", "jsonpath={.status.allocatable}")
        error.add_note(await world.plane.user("get", "node", kubelet.node, *offered))
        error.add_note(kubelet.log)
        raise


async def test_A4_allocatable_shows_number_memory_and_cores(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """A node's allocatable shows the number, memory and cores of its GPUs.

    The kubelet rejects no pod for which the ledger has room."""
    await world.start("agent", *agent_options(kubelet, "1xT4"))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    for count in ("nvidia.com/gpu", "volcano.sh/vgpu-number"):
        await kubelet.offered(count, 10)
    for memory, cores in ((MEMORY, CORES), ("volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores")):
        await kubelet.offered(memory, CARD_MIB)
        await kubelet.offered(cores, 100)

    async with telling(world, kubelet):
        await pods_that_wrote_more(world, kubelet)


async def pods_that_wrote_more(world: KubeWorld, kubelet: RealKubelet) -> None:
    """Check that pods start even if their manifests request more GPU memory than the node offers.

    To admit such a pod, Apportion temporarily raises the memory in the node's allocatable."""
    await world.plane.apply(
        pod("above", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 20_001})
    )
    made = await kubelet.made("above", "main")
    assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{CARD_MIB}m"
    await kubelet.offered("volcano.sh/vgpu-memory", 20_001)
    await world.delete("above")
    await kubelet.offered("volcano.sh/vgpu-memory", CARD_MIB)

    await world.plane.apply(pod("small", {"nvidia.com/gpu": 1, MEMORY: 10_000}))
    await world.facts.count(SharesAllocated, 2)
    (placed,) = (event for event in world.facts.of(PodPlaced) if event.name == "small")
    await world.facts.write(ResizeAsked(pod=placed.pod, by="ann", memory_mib=2_000))
    await world.facts.count(PodResized, 1)
    await world.plane.apply(pod("beside", {"nvidia.com/gpu": 1, MEMORY: 13_000}))
    await kubelet.made("beside", "main")
    await kubelet.offered(MEMORY, CARD_MIB + 8_000)
    for name in ("small", "beside"):  # a kubelet admits again what it made and did not start
        await kubelet.pid(name, "main")
    await kubelet.kill()
    await kubelet.start()

    await world.plane.apply(pod("too-large", {MEMORY: 500}, scheduler="someone-else"))
    await world.bind("too-large", kubelet.node, {})
    await world.described("too-large", f"OutOf{MEMORY}")
    assert not await rejected(world, "small", "beside")  # it has looked at all of them by now


def pod(name: str, limits: dict[str, int], *, scheduler: str = "apportion") -> dict[str, Any]:
    """Return a pod that keeps running."""
    made = kube_pod(name, {resource: str(amount) for resource, amount in limits.items()})
    made["spec"]["schedulerName"] = scheduler
    made["spec"]["containers"][0] |= {
        "image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "600"],
    }  # fmt: skip
    return made


async def rejected(world: KubeWorld, *names: str) -> list[str]:
    """Return which of these pods the kubelet has rejected."""
    phases = {name: (await world.pod(name))["status"]["phase"] for name in names}
    return [name for name, phase in phases.items() if phase == "Failed"]


def wanted(shares: list[Share]) -> dict[str, str]:
    """Return the environment variables that HAMi sets for a container with these shares."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{s.memory_mib}m" for at, s in enumerate(shares)}
    visible = ",".join(share.device for share in shares)
    return env | {"NVIDIA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_SM_LIMIT": str(shares[0].cores)}


def limits_of(env: dict[str, str]) -> dict[str, str]:
    """Return only the variables that name the visible devices and their limits."""
    told = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT")
    return {
        name: value
        for name, value in env.items()
        if name in told or name.startswith("CUDA_DEVICE_MEMORY_LIMIT_")
    }


async def idle(kubelet: RealKubelet) -> None:
    """Check that a sample's container without devices gets no device variables.

    Also check that the sample pod with high priority has task priority 0, which is the highest."""
    made = await kubelet.made("two-containers", "log")
    assert limits_of(made["env"]) == {}
    high: dict[str, Any] = (await kubelet.made("gpu-pod-high", "main"))["env"]
    assert high["CUDA_TASK_PRIORITY"] == "0"
