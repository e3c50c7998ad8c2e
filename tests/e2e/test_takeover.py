"""Apportion takes over a node from Volcano's device plugin while a pod of Volcano still runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import PodPlaced, ShareBreached
from tests.e2e.test_nodes import pod, rejected
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import NODE, agent_options
from tests.support.old_plugin import GIVEN, OldPlugin
from tests.support.real_kubelet import RealKubelet

NUMBER, MEMORY, CORES = (f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "cores"))
SPEC, CARD_MIB = "1xT4", 15_360
OLD = {NUMBER: 10, MEMORY: CARD_MIB, CORES: 100}
"""What Volcano's plugin registers for a GPU: each unit is a device of its own."""

PATIENCE_S = 200.0
"""The kubelet chooses 500 devices of 15,360 for each pod, which is slow on a busy machine."""


@asynccontextmanager
async def old_plugin(kubelet: RealKubelet) -> AsyncIterator[None]:
    """Run plugins like Volcano's until the `with` block ends."""
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
