"""Each NVIDIA sample runs on a real kubelet with a fake driver, and sees only its shares.

The samples pass through the webhook. Only their images and their CPU and memory are changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml

from apportion.agent.shares.regions import SharedFile
from apportion.core.grants.granting import PIPES
from apportion.core.grants.mig import cut
from apportion.core.grants.region import Region
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    NodeReported,
    PodGone,
    PodPlaced,
    Share,
    SharesAllocated,
)
from apportion_schemas.configuration import NodeConfiguration
from tests.integration.kubelet.test_cards import on_the_card, shown
from tests.support.control_plane import ROOT
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import NODE
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.polling import until
from tests.support.real_kubelet import RealKubelet
from tests.support.volcano_controller import make_pods
from tests.support.webhook import running_webhook

PODS = ROOT / "examples" / "pods"
OTHERS = {"ascend-310p"}
CUT, UNDER_MPS = "dynamic-mig", "volcano-vgpu-mps"
PLAIN = sorted({path.stem for path in PODS.glob("*.yaml")} - OTHERS - {CUT, UNDER_MPS})
LOOKS = {"image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "600"]}
MACHINE = ("cpu", "memory")
OURS = ("CUDA_", "NVIDIA_", "GPU_", "ACTIVE_", "LIBCUDA_", "APPORTION_")
HELD = {
    "/usr/local/vgpu", "/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload",
    "/tmp/vgpulock", "/tmp/cudevshr.cache",  # noqa: S108 - HAMi-core has these written into it
}  # fmt: skip
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where MPS keeps its own


@pytest.fixture
def driver(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """Provide the node's fake driver. This process and the agent's process load it."""
    with fake_driver(folder, request.param) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        pynvml.nvmlInit()
        yield made
        pynvml.nvmlShutdown()


class Node:
    """A node with a kubelet, an agent and a fake driver, on which the tests run samples."""

    def __init__(self, world: KubeWorld, kubelet: RealKubelet, driver: FakeDriver) -> None:
        self.world = world
        self.kubelet = kubelet
        self.driver = driver

    async def start(self, *flags: str) -> None:
        """Start all services. The node has the CDI specification that NVIDIA's toolkit writes."""
        (self.kubelet.cdi / "nvidia.json").write_text(json.dumps(specification(self.driver)))
        folder = self.kubelet.folder
        options = ["--node", NODE, "--kubelet", folder, "--cdi", self.kubelet.cdi]
        options += ["--state", folder / "state", "--run", folder / "run"]
        options += ["--library", built() / "libstandin.so"]
        await self.world.start("agent", *map(str, options), *flags)
        for verb in ("watcher", "scheduler", "binder"):
            await self.world.start(verb)

    async def create(self, namespace: str, document: dict[str, Any]) -> list[PodPlaced]:
        """Create a sample's document in this namespace, and return the placements of its pods."""
        plane = self.world.plane
        before = len(self.world.facts.of(SharesAllocated))
        await plane.user("create", "namespace", namespace, ok=None)
        await plane.apply(document, namespace=namespace)
        await make_pods(self.world, namespace)
        pods = (await plane.get("pods", namespace=namespace))["items"]
        await self.world.facts.count(SharesAllocated, before + len(pods))
        uids = {pod["metadata"]["uid"] for pod in pods}
        return [event for event in self.world.facts.of(PodPlaced) if event.pod in uids]

    async def delete(self, placed: list[PodPlaced]) -> None:
        """Delete the sample's pods, and wait until their shares are free."""
        gone = len(self.world.facts.of(PodGone))
        for event in placed:
            await self.world.delete(event.name, namespace=event.namespace)
        await self.world.facts.count(PodGone, gone + len(placed))

    async def environment(self, pod: str, container: str) -> dict[str, str]:
        """Return the device variables in the environment of the container's process."""
        await self.kubelet.made(pod, container)

        async def read() -> dict[str, str]:  # empty until the runtime has executed the program
            return _environment(await self.kubelet.pid(pod, container))

        env = await until(read, f"the program of {pod}/{container} to be executed")
        return {name: value for name, value in env.items() if name.startswith(OURS)}

    def edits(self, pod: str, container: str) -> dict[str, Any]:
        """Return the mounts and device files that the container got from CDI."""
        found: dict[str, Any] = {"mounts": {}, "nodes": []}
        for name in self.kubelet.created(pod, container)[-1]["devices"]:
            path = self.kubelet.cdi / f"apportion-{name.partition('=')[2]}.json"
            (device,) = json.loads(path.read_text())["devices"]
            said = device["containerEdits"]
            found["mounts"] |= {m["containerPath"]: m["hostPath"] for m in said.get("mounts", ())}
            found["nodes"] += [node["path"] for node in said.get("deviceNodes", ())]
        return found

    def nodes_of(self, cards: list[str]) -> list[str]:
        """Return the device files of these GPUs, and the control file that all GPUs share."""
        return ["/dev/nvidiactl", *(f"/dev/nvidia{self.driver.ids.index(card)}" for card in cards)]


def _environment(process: int) -> dict[str, str]:
    raw = Path(f"/proc/{process}/environ").read_text()
    return dict(line.split("=", 1) for line in raw.split("\0") if line)


def specification(driver: FakeDriver) -> dict[str, Any]:
    """Return the CDI specification that NVIDIA's toolkit would write for the node's GPUs."""

    def nodes(*names: str) -> dict[str, Any]:
        return {"deviceNodes": [{"path": f"/dev/nvidia{name}"} for name in names]}

    cards = [{"name": card, "containerEdits": nodes(str(at))} for at, card in enumerate(driver.ids)]
    every = {"containerEdits": nodes("ctl")}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": cards, **every}


def sample(manifest: str) -> list[dict[str, Any]]:
    """Return the sample's documents, changed so that they run on this machine."""
    text = (PODS / f"{manifest}.yaml").read_text()
    return [_adapted(document) for document in yaml.safe_load_all(text)]


def _adapted(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    for each in [task["template"]["spec"] for task in spec.get("tasks", ())] or [spec]:
        each["containers"] = [_here(container) for container in each["containers"]]
    return document


def _here(container: dict[str, Any]) -> dict[str, Any]:
    resources = {
        kind: {name: amount for name, amount in amounts.items() if name not in MACHINE}
        for kind, amounts in container["resources"].items()
    }
    return {**container, **LOOKS, "resources": resources}


def limits(shares: list[Share]) -> dict[str, str]:
    """Return the environment that HAMi gives a container with these shares and a compute policy."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{s.memory_mib}m" for at, s in enumerate(shares)}
    return env | {
        "NVIDIA_VISIBLE_DEVICES": ",".join(share.device for share in shares),
        "CUDA_DEVICE_SM_LIMIT": str(shares[0].cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/share.cache",
        "GPU_CORE_UTILIZATION_POLICY": "default",
        "LIBCUDA_LOG_LEVEL": "1",
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver", ["8xA100-40GB"], indirect=True)
async def test_A1_every_process_has_exactly_its_share(
    world: KubeWorld, kubelet: RealKubelet, driver: FakeDriver
) -> None:
    """Each container of each sample gets exactly its share.

    Its environment, region file, mounts and device nodes show the share and nothing else."""
    node = Node(world, kubelet, driver)
    async with running_webhook(world):
        await node.start()
        for manifest in PLAIN:
            for document in sample(manifest):
                placed = await node.create(manifest.lower(), document)
                assert placed
                for event in placed:
                    await check(node, event)
                if manifest == "hami-two-containers":
                    assert await node.environment("two-containers", "log") == {}
                await node.delete(placed)


async def check(node: Node, event: PodPlaced) -> None:
    """Check the environment, devices and mounts of every container that has a share."""
    for container in {share.container for share in event.shares}:
        shares = [share for share in event.shares if share.container == container]
        shares.sort(key=lambda share: node.driver.ids.index(share.device))
        what = f"{event.name}/{container}"
        env = limits(shares) | event.controls.get(container, {})
        assert await node.environment(event.name, container) == env, what
        edits = node.edits(event.name, container)
        assert edits["nodes"] == node.nodes_of([share.device for share in shares]), what
        assert edits["mounts"].keys() == HELD, what
        home = edits["mounts"]["/usr/local/vgpu"]
        assert event.pod in home, what
        with SharedFile(Path(home) / "share.cache") as file:
            region = Region(file)
            assert region.memory == tuple(share.memory_mib << 20 for share in shares), what
            # HAMi-core makes a container of low priority wait only where it has a limit: 99 is next
            # to none.
            waits = region.priority > 0 and not 0 < shares[0].cores < 100
            assert region.cores == (99 if waits else shares[0].cores,) * len(shares), what


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["2xA100-40GB:mig"], indirect=True)
async def test_A2_a_process_has_exactly_its_instance(
    world: KubeWorld, kubelet: RealKubelet, driver: FakeDriver
) -> None:
    """A process sees exactly its MIG instance.

    The instance is created for the pod, and removed after the pod ends."""
    node = Node(world, kubelet, driver)
    await node.start()
    (event,) = await node.create("mig", *sample(CUT))
    (share,) = event.shares
    card = driver.ids.index(share.device)
    assert share.instance is not None
    assert on_the_card(card) == {cut(share.instance)}
    env = await node.environment(event.name, "main")
    assert env.keys() == {"NVIDIA_VISIBLE_DEVICES"}
    assert shown(env["NVIDIA_VISIBLE_DEVICES"]) == (share.device, cut(share.instance))
    edits = node.edits(event.name, "main")
    assert edits["mounts"] == {}
    assert edits["nodes"] == node.nodes_of([share.device])
    await node.delete([event])
    await world.facts.until(lambda: not on_the_card(card), "the instance to be destroyed")


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["1xT4"], indirect=True)
async def test_C3_a_process_has_exactly_its_part_of_a_card(
    world: KubeWorld, kubelet: RealKubelet, driver: FakeDriver
) -> None:
    """Under MPS, a process gets exactly its memory limit, thread percentage and MPS pipe directory.

    After the pod ends, the GPU leaves MPS."""
    mps = NodeConfiguration(name=NODE, operating_mode="mps")
    said = Configuration(nodeconfig=(mps,))
    await world.facts.write(ConfigurationChanged(by="test", configuration=said))
    node = Node(world, kubelet, driver)
    await node.start("--mps")
    (card,) = driver.ids
    placed = await node.create("mps", *sample(UNDER_MPS))
    assert await node.environment(placed[0].name, "main") == {
        "NVIDIA_VISIBLE_DEVICES": card,
        "CUDA_MPS_PIPE_DIRECTORY": PIPES,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    edits = node.edits(placed[0].name, "main")
    assert edits["mounts"].keys() == {PIPES, SHARED_MEMORY}
    assert edits["nodes"] == node.nodes_of([card])
    await node.delete(placed)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def given_back() -> bool:
        mode = pynvml.nvmlDeviceGetComputeMode(handle)
        return bool(mode == pynvml.NVML_COMPUTEMODE_DEFAULT)

    await world.facts.until(given_back, "the card to be given back")
    assert world.facts.of(NodeReported)[-1].devices[0].mode == "mps"
