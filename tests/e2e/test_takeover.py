"""Apportion takes over a node from Volcano's device plugin while a pod of Volcano still runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import PodPlaced, ShareBreached
from tests.e2e.test_nodes import pod, rejected
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import NODE, agent_options
from tests.support.real_kubelet import RealKubelet

NUMBER, MEMORY, CORES = (f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "cores"))
SPEC, CARD_MIB = "1xT4", 15_360
OLD = {NUMBER: 10, MEMORY: CARD_MIB, CORES: 100}
"""What Volcano's plugin registers for a GPU: each unit is a device of its own."""

GIVEN = {"CUDA_DEVICE_MEMORY_LIMIT_0": "500m"}
PATIENCE_S = 200.0
"""The kubelet chooses 500 devices of 15,360 for each pod, which is slow on a busy machine."""


class OldPlugin:
    """A device plugin without PreStartContainer, as Volcano's is."""

    def __init__(self, resource: str, count: int) -> None:
        self.resource = resource
        self._devices = [
            pb.Device(id=f"{resource.rpartition('-')[2]}-{number}", health="Healthy")
            for number in range(count)
        ]
        self._over = asyncio.Event()
        self._server = grpc.aio.server(options=calls.OPTIONS)
        answers = {
            calls.OPTIONS_OF: self._options,
            calls.LIST_AND_WATCH: self._list,
            calls.ALLOCATE: self._allocate,
        }
        calls.serve(self._server, answers)

    async def register(self, folder: Path) -> None:
        """Serve on a socket, and register with the kubelet."""
        endpoint = f"{self.resource.replace('/', '-')}.sock"
        self._server.add_insecure_port(f"unix:{folder / endpoint}")
        await self._server.start()
        request = pb.RegisterRequest(
            version=calls.VERSION, endpoint=endpoint, resource_name=self.resource
        )
        async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
            await calls.REGISTER.on(channel)(request, timeout=10)

    async def stop(self) -> None:
        """Stop serving, as if the plugin's DaemonSet were deleted."""
        self._over.set()
        await self._server.stop(grace=None)

    async def _options(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return pb.Options()

    async def _list(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002 - of gRPC
        yield pb.Devices(devices=self._devices)
        await self._over.wait()

    async def _allocate(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return pb.AllocateResponse(containers=[pb.Allocated(env=GIVEN) for _ in request.containers])


@asynccontextmanager
async def old_plugin(kubelet: RealKubelet) -> AsyncIterator[None]:
    """Run plugins like Volcano's until the block ends."""
    plugins = [OldPlugin(resource, count) for resource, count in OLD.items()]
    try:
        for plugin in plugins:
            await plugin.register(kubelet.folder / "device-plugins")
        for resource, count in OLD.items():
            await kubelet.offered(resource, count)
        yield
    finally:
        for plugin in plugins:
            await plugin.stop()


@pytest.mark.timeout(600)
async def test_A4_pods_with_memory_and_cores_start_on_a_node_that_volcano_had(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """After Apportion takes over a node of Volcano, new pods start there and old pods keep running.

    Pods still start after the kubelet and the agent restart."""
    card = simulated_devices(NODE, SPEC)[0].id
    asks = {NUMBER: 1, MEMORY: 500, CORES: 30}
    async with old_plugin(kubelet):
        await world.plane.apply(pod("old", asks, scheduler="volcano"))
        notes = {"volcano.sh/vgpu-ids-new": f"{card},NVIDIA,500,30:"}
        await world.bind("old", NODE, notes)
        await kubelet.made("old", "main", timeout_s=PATIENCE_S)

    agent = await world.start("agent", *agent_options(kubelet, SPEC))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    await kubelet.offered(NUMBER, 10)
    await world.plane.apply(pod("first", asks))
    made = await kubelet.made("first", "main", timeout_s=PATIENCE_S)
    assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"
    await kubelet.end_process("old", "main")
    again = await kubelet.made("old", "main", 2, timeout_s=PATIENCE_S)
    assert GIVEN.items() <= again["env"].items()

    for name in ("old", "first"):  # a kubelet admits again what it made and did not start
        await kubelet.pid(name, "main")
    await kubelet.kill()
    await agent.kill()
    await kubelet.start()
    await agent.start()
    await agent.ready()
    await world.plane.apply(pod("second", asks))
    await kubelet.made("second", "main", timeout_s=PATIENCE_S)
    assert not await rejected(world, "old", "first", "second")
    assert {each.name for each in world.facts.of(PodPlaced)} == {"first", "second"}
    assert not world.facts.of(ShareBreached)
