"""Pods are placed on nodes that keep the device plugin of HAMi or Volcano, without our agent."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import (
    DEVICE_PLUGIN,
    HOSTNAME,
    DevicesRegistered,
    PodBound,
    PodPlaced,
    PodRefused,
)
from tests.support.foreign_plugins import HAMI_LOCK, VOLCANO_LOCK, WORDS, ForeignPlugin
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.node_kubelet import NodeKubelet
from tests.support.vendor_nodes import VENDORS

VGPU = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "2000"}
VCUDA = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "8"}


@asynccontextmanager
async def serving(world: KubeWorld, *plugins: ForeignPlugin) -> AsyncIterator[list[NodeKubelet]]:
    """Run the plugins, their kubelets, and our services except for an agent."""
    labelled = []
    for plugin in plugins:
        labels = {HOSTNAME: plugin.node}
        if plugin.vendor:
            labels |= VENDORS[plugin.vendor].node.labels
        if plugin.system:
            labels[DEVICE_PLUGIN] = plugin.system
        labelled.append((plugin.node, labels))
    await world.plane.apply(*(kube_node(name, labels=labels) for name, labels in labelled))
    await world.start("watcher")
    await world.start("scheduler", "--name", "s")
    await world.start("binder")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kubelet")))
        kubelets = []
        for at, plugin in enumerate(plugins):
            kubelet = NodeKubelet(world.plane.api, plugin.node, folder / str(at), seed=at)
            kubelets.append(await stack.enter_async_context(kubelet))
            stack.push_async_callback(plugin.stop)
            await plugin.start(kubelet)
        yield kubelets


async def test_F19_each_container_gets_the_devices_of_its_own_pod(world: KubeWorld) -> None:
    """The plugins of HAMi and Volcano give each container its own pod's devices, although many pods
    are placed on a node at once. Afterwards no node is locked."""
    hami = ForeignPlugin(world.plane.api, "n1", "hami", 2)
    volcano = ForeignPlugin(world.plane.api, "n2", "volcano", 2)
    async with serving(world, hami, volcano) as kubelets:
        pods = [kube_pod(f"h{n}", share(2000, 10)) for n in range(10)]
        pods += [kube_pod(f"v{n}", VGPU) for n in range(6)]
        await world.plane.apply(*pods)
        await world.facts.count(PodBound, 16)
        await world.facts.until(
            lambda: sum(len(each.handed) for each in kubelets) == 16, "every container started"
        )
    handed = kubelets[0].handed | kubelets[1].handed
    assert all(given == wanted for given, wanted in handed.values()), handed
    for name, lock in (("n1", HAMI_LOCK), ("n2", VOLCANO_LOCK)):
        node = await world.plane.get("node", name)
        assert lock not in node["metadata"]["annotations"]
    pod = await world.pod("h0")
    assert pod["metadata"]["labels"]["hami.io/vgpu-node"] == "n1"


async def test_G11_devices_of_every_vendor_are_handed_out(world: KubeWorld) -> None:
    """A pod of each vendor is placed on the node of its plugin. A plugin that takes devices from an
    annotation gives each container its own pod's devices, and leaves no lock. A node with a
    vendor's own plugin needs no label that names the plugin, except for Neuron and Kunlunxin."""
    plugins = {}
    for name, vendor in VENDORS.items():
        system = registration(vendor.node).plugin.removeprefix("vendor")
        plugins[name] = ForeignPlugin(world.plane.api, f"n-{name}", system, vendor=name)
    pods = [
        kube_pod(
            f"{name}-{at}",
            {key: str(amount) for key, amount in VENDORS[name].limits[0].items()},
            nodeSelector={HOSTNAME: f"n-{name}"},
        )
        for name in VENDORS
        for at in range(2)
    ]
    async with serving(world, *plugins.values()) as kubelets:
        await world.plane.apply(*pods)
        await world.facts.count(PodBound, len(pods))
        handing = [each for each in kubelets if each.node.removeprefix("n-") in WORDS]
        await world.facts.until(
            lambda: all(len(kubelet.handed) == 2 for kubelet in handing), "every container started"
        )
    for kubelet in handing:
        assert all(given == wanted for given, wanted in kubelet.handed.values()), kubelet.handed
        node = await world.plane.get("node", kubelet.node)
        assert not [key for key in node["metadata"]["annotations"] if key.endswith(".lock")]


async def test_a_pod_of_another_system_is_refused_by_name(world: KubeWorld) -> None:
    """A pod with the resource names of gpu-manager is not placed on a node of HAMi's plugin. Once
    an operator labels the node for our agent, the plugin's devices are not offered."""
    hami = ForeignPlugin(world.plane.api, "n1", "hami", 1)
    async with serving(world, hami):
        await world.plane.apply(kube_pod("p", VCUDA))
        (refused,) = await world.facts.count(PodRefused, 1)
        assert [str(code) for code in refused.reasons] == ["DevicePluginForeign"]
        await world.plane.user("label", "node", "n1", f"{DEVICE_PLUGIN}=apportion", "--overwrite")
        await world.plane.apply(kube_pod("h", share(2000)))
        await world.facts.until(
            lambda: any(each.name == "h" for each in world.facts.of(PodRefused)), "h refused"
        )
        assert not world.facts.of(PodPlaced)


async def test_a_lock_of_another_pod_is_waited_for(world: KubeWorld) -> None:
    """While the node lock names another pod that exists, the binder waits. The waiting pod's Event
    names that other pod. The binder takes over the lock of a deleted pod."""
    hami = ForeignPlugin(world.plane.api, "n1", "hami", 1)
    async with serving(world, hami):
        await world.facts.count(DevicesRegistered, 1)
        other = kube_pod("other", {}, schedulerName="hami-scheduler")
        await world.plane.apply(other)
        lock = {HAMI_LOCK: "2999-01-01T00:00:00Z,default,other"}
        path = "/api/v1/nodes/n1"
        body = {"metadata": {"annotations": lock}}
        await asyncio.to_thread(world.plane.api.request, "PATCH", path, body, merge=True)
        await world.plane.apply(kube_pod("p", share(2000)))
        await world.described("p", "default/other")
        await world.delete("other")
        await world.facts.count(PodBound, 1)
