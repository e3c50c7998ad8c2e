"""Each of two pods created at once on a real kubelet gets its own share, whatever is killed.

There are four rounds; `APPORTION_NODE_ROUNDS=200` makes it two hundred. `APPORTION_NODE_SEED` sets
the random seed. The test prints how long each pod waited from its binding to its allocation."""

import asyncio
import os
import random
from datetime import datetime
from typing import Any

import pytest
from click import echo

from apportion_schemas import NodeReported, PodBound, PodPlaced, SharesAllocated
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import agent_options
from tests.support.processes import ServiceProcess
from tests.support.real_kubelet import RealKubelet

ROUNDS = int(os.environ.get("APPORTION_NODE_ROUNDS", "4"))
SEED = int(os.environ.get("APPORTION_NODE_SEED", "1"))
DEEDS = ("nothing", "kill a container", "kill the agent", "kill the kubelet")
RARE = (4, 3, 2, 1)
"""How often each is done; a kubelet takes some seconds to come back."""
SLOTS = 40
LOOKS = {"image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "600"]}


class Rounds:
    """The running system under test, and the random choices for its rounds."""

    def __init__(self, world: KubeWorld, kubelet: RealKubelet, agent: ServiceProcess) -> None:
        self.world = world
        self.kubelet = kubelet
        self.agent = agent
        self.chance = random.Random(SEED)

    async def play(self, number: int) -> None:
        """Create two pods at once, perhaps kill a process, and check both pods' shares."""
        deed = self.chance.choices(DEEDS, RARE)[0]
        if deed == "kill the kubelet":
            await self.kubelet.kill()
            await self.kubelet.start()
            await self.kubelet.offered("nvidia.com/gpu", SLOTS)
        names = [f"r{number}-{side}" for side in "ab"]
        await self.world.plane.apply(*(self._pod(name) for name in names))
        try:
            for name in names:
                await self.check(name, times=1)
            await self._again(names[0], deed)
        except AssertionError as error:
            told = [await self.world.plane.user("describe", "pod", name) for name in names]
            pytest.fail(f"seed {SEED}, round {number}, {deed}: {error}\n" + "\n".join(told))
        for name in names:
            await self.world.delete(name)

    async def _again(self, name: str, deed: str) -> None:
        """Kill a container of the pod, and check that it restarts with the same share.

        If the round's fault `deed` is "kill the agent", the agent is down while the container ends.
        Do nothing if `deed` is neither this fault nor "kill a container"."""
        if deed not in {"kill a container", "kill the agent"}:
            return
        if deed == "kill the agent":
            await self.agent.kill()
        await self.kubelet.end_process(name, "main")
        if deed == "kill the agent":
            await self.agent.start()
        await self.check(name, times=2)

    async def check(self, name: str, *, times: int) -> None:
        """Check that each container of the pod got the share that the scheduler decided."""
        made = {"main": await self.kubelet.made(name, "main", times)}
        if self.kubelet.created(name, "fetch"):
            made["fetch"] = self.kubelet.created(name, "fetch")[-1]
        (placed,) = (event for event in self.world.facts.of(PodPlaced) if event.name == name)
        (held,) = placed.shares
        for container, said in made.items():
            got = (
                said["env"].get("NVIDIA_VISIBLE_DEVICES"),
                said["env"].get("CUDA_DEVICE_MEMORY_LIMIT_0"),
            )
            assert got == (held.device, f"{held.memory_mib}m"), f"seed {SEED}: {name}/{container}"

    def _pod(self, name: str) -> dict[str, Any]:
        """Return a pod with one share of random size.

        A third of these pods have an init container, which uses the same share."""
        memory_mib = self.chance.randrange(500, 3000)
        pod = kube_pod(name, share(memory_mib))
        containers = pod["spec"]["containers"]
        containers[0] |= LOOKS
        if self.chance.random() < 1 / 3:
            limits = {"limits": share(memory_mib // 2)}
            first = {"name": "fetch", **LOOKS, "command": ["true"], "resources": limits}
            pod["spec"]["initContainers"] = [first]
        return pod

    def waits(self) -> list[float]:
        """Return for each pod the seconds from its PodBound event to its SharesAllocated event."""
        bound, allocated = self._times(PodBound), self._times(SharesAllocated)
        return sorted((allocated[pod] - bound[pod]).total_seconds() for pod in bound)

    def _times(self, kind: type[PodBound] | type[SharesAllocated]) -> dict[str, datetime]:
        return {
            event.data.pod: datetime.fromisoformat(event.time)
            for _, event in self.world.facts.events
            if isinstance(event.data, kind)
        }


async def started(world: KubeWorld, kubelet: RealKubelet) -> ServiceProcess:
    """Start all services. Return the node's agent once it is registered with the kubelet."""
    agent = await world.start("agent", *agent_options(kubelet, "4xA100-80GB"))
    await world.facts.count(NodeReported, 1)
    await kubelet.offered("nvidia.com/gpu", SLOTS)
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    return agent


@pytest.mark.timeout(240 + 90 * ROUNDS)
async def test_each_pod_gets_its_own_share_whatever_dies(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """In every round, each of two pods created together gets its own share, whatever is killed."""
    agent = await started(world, kubelet)
    rounds = Rounds(world, kubelet, agent)
    for number in range(ROUNDS):
        await rounds.play(number)
    assert len(await world.facts.count(SharesAllocated, 2 * ROUNDS)) == 2 * ROUNDS
    waits = rounds.waits()
    at = [waits[min(len(waits) - 1, int(len(waits) * part))] for part in (0.5, 0.9, 0.99, 1)]
    echo(
        f"{ROUNDS} rounds, {len(waits)} pods: bound to allocated, seconds: "
        f"p50 {at[0]:.2f}, p90 {at[1]:.2f}, p99 {at[2]:.2f}, most {at[3]:.2f}"
    )


async def test_an_agent_that_restarts_loses_no_pod_that_arrives_while_it_is_away(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """Pods that are created before, while and after the agent restarts start with their shares."""
    agent = await started(world, kubelet)
    names = [f"arrives-{number}" for number in range(12)]

    async def arrive(some: list[str]) -> None:
        for name in some:
            pod = kube_pod(name, share(1_000))
            pod["spec"]["containers"][0] |= LOOKS
            await world.plane.apply(pod)

    await arrive(names[:2])
    ended, _ = await asyncio.gather(agent.stop(), arrive(names[2:6]))
    assert ended == 0
    await arrive(names[6:10])
    await agent.start()
    await arrive(names[10:])
    for name in names:
        await kubelet.made(name, "main", 1)
    phases = [(await world.pod(name))["status"]["phase"] for name in names]
    assert "Failed" not in phases
