"""Services are killed at random times under load. Afterwards, cluster and ledger must agree.

By default there is one round; `APPORTION_KILL_ROUNDS=20` runs twenty. A failed round prints its
seed, and `APPORTION_KILL_SEED` repeats the round of that seed."""

import asyncio
import json
import os
import random
import subprocess
from collections import Counter
from typing import Any

import pytest

from apportion.core.workloads.adoption.placement_annotations import SHARES, shares_text
from apportion_schemas import BindFailed, PodBound, PodEvicted, PodGone, PodPlaced, PodSubmitted
from tests.e2e.test_preemption import priority_class
from tests.e2e.test_volumes import bind, claim, mounting, volume
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.processes import ServiceProcess

ROUNDS = int(os.environ.get("APPORTION_KILL_ROUNDS", "1"))
SEED = int(os.environ.get("APPORTION_KILL_SEED", "0"))
SEEDS = [SEED] if SEED else range(1, ROUNDS + 1)
PODS = 40
KILLS = 5
WHOLE = share(15_000)
"""The whole of its node's only GPU."""
ALONE = {"key": "alone", "effect": "NoSchedule"}
ON_THE_ONE = {
    "nodeSelector": {"disk": "n3"},
    "tolerations": [{"key": "alone", "operator": "Exists"}],
}
GATED, MOUNTING = 2, 4
"""Pods of each batch that start with a gate, and the index up to which pods mount the claim."""
UNGATE = json.dumps({"spec": {"schedulingGates": None}})
"""A patch that may be sent again: a server that was killed may have written the first."""


def _pod(name: str) -> dict[str, Any]:
    """Return a pod that is plain, has a scheduling gate, or mounts a volume.

    The number in `name` determines which of the three it is."""
    at = int(name[1:]) % 8
    if at < GATED:
        return kube_pod(name, share(2000), schedulingGates=[{"name": "example.com/quota"}])
    return mounting(name, "data", memory_mib=2000) if at < MOUNTING else kube_pod(name, share(2000))


class Round:
    """One round of load and kills: its random choices, running services and list of kills."""

    def __init__(self, world: KubeWorld, seed: int) -> None:
        self.world = world
        self.chance = random.Random(f"{seed} kills")
        self.whim = random.Random(f"{seed} pods")
        self.services: dict[str, ServiceProcess] = {}
        self.killed: list[str] = []

    async def start(self) -> None:
        """Start the cluster: two nodes with room for all pods, a node with one GPU, and each
        service."""
        nodes = [kube_node(name, labels={"disk": name}) for name in ("n1", "n2")]
        nodes.append(kube_node("n3", labels={"disk": "n3"}, taints=[ALONE]))
        await self.world.plane.apply(*nodes, priority_class("urgent", 1_000))
        await self.world.plane.apply(claim("data"), volume("v", "n2"))
        await bind(self.world, "data", "v")
        roomy = [(name, "8xA100-80GB") for name in ("n1", "n2")]
        await self.world.agents(*roomy, ("n3", "1xT4"))
        for verb, *options in (("watcher", "--compare-every", "5"), ("scheduler",), ("binder",)):
            self.services[verb] = await self.world.start(verb, *options)

    async def load(self) -> None:
        """Submit pods in batches, delete some of them, remove gates, and cause one preemption.

        The preempted pod has a low priority and uses a node's only GPU."""
        await self._insist(self.world.plane.apply, kube_pod("low", WHOLE, **ON_THE_ONE))
        for first in range(0, PODS, 8):
            names = [f"p{number}" for number in range(first, min(first + 8, PODS))]
            await self._insist(self.world.plane.apply, *map(_pod, names))
            for name in names[:GATED]:
                await self._insist(
                    self.world.plane.user, "patch", "pod", name, "--type=merge", "-p", UNGATE
                )
            if self.whim.random() < 0.5:
                name = self.whim.choice(names)
                gone = ("delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found")
                await self._insist(self.world.plane.user, *gone)
        await until(self._low_is_bound, "low to be bound", timeout_s=240, interval_s=0.5)
        high = kube_pod("high", WHOLE, **ON_THE_ONE, priorityClassName="urgent")
        await self._insist(self.world.plane.apply, high)

    async def _low_is_bound(self) -> bool:
        try:
            return bool((await self.world.pod("low"))["spec"].get("nodeName"))
        except AssertionError:  # the API server is away
            return False

    async def _end_as_a_kubelet(self, pods: list[Any]) -> None:
        """Remove the pods that are being deleted, as their kubelet would."""
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                await self.world.delete(pod["metadata"]["name"])

    async def kill(self) -> None:
        """Kill random processes one after another, and restart each after a random delay."""
        for _ in range(KILLS):
            await self._moment()
            victim = self.chance.choice(["watcher", "scheduler", "binder", "api", "nats"])
            self.killed.append(victim)
            if victim == "api":
                self.world.plane.kill_server()
                await self._moment()
                await asyncio.to_thread(self.world.plane.start_server)
            elif victim == "nats":
                await self.world.bus.crash()
                await self._moment()
                await self.world.bus.restart()
            else:
                await self.services[victim].kill()
                await self._moment()
                await self.services[victim].start()

    async def _moment(self) -> None:
        """Wait for a random time while the load continues.

        These waits make each round kill processes at different moments."""
        due = asyncio.get_running_loop().create_future()
        due.get_loop().call_later(self.chance.uniform(0.1, 1.5), due.set_result, None)
        await due

    async def _insist(self, act: Any, *arguments: Any) -> None:
        """Run a kubectl command until the API server accepts it."""

        async def done() -> bool:
            try:
                await act(*arguments)
            except (AssertionError, subprocess.TimeoutExpired):
                return False
            return True

        await until(done, f"kubectl {arguments[0]}", timeout_s=240, interval_s=0.5)

    async def settled(self) -> list[Any]:
        """Wait until every pod is bound and the ledger has exactly the cluster's pods. Return the
        pods."""

        async def there() -> list[Any]:
            text = await self.world.plane.user("get", "pods", "-o", "json")
            pods = list(json.loads(text)["items"])
            await self._end_as_a_kubelet(pods)
            bound = all(pod["spec"].get("nodeName") for pod in pods)
            known = {event.uid for event in self.world.facts.of(PodSubmitted)}
            known -= {event.uid for event in self.world.facts.of(PodGone)}
            told = {event.pod for event in self.world.facts.of(PodBound)}
            uids = {pod["metadata"]["uid"] for pod in pods}
            return pods if bound and known == uids and uids <= told else []

        what = f"all pods to be bound after {self.killed}"
        return await until(there, what, timeout_s=240, interval_s=0.5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
async def test_cluster_and_ledger_agree_after_every_death(world: KubeWorld, seed: int) -> None:
    """After all kills, each pod is bound exactly once, with the node and shares in the ledger."""
    going = Round(world, seed)
    await going.start()
    await asyncio.gather(going.load(), going.kill())
    pods = await going.settled()
    facts = world.facts
    last = {event.pod: event for event in facts.of(PodPlaced)}
    names = {pod["metadata"]["name"] for pod in pods}
    assert "high" in names
    assert "low" not in names
    for pod in pods:
        uid = pod["metadata"]["uid"]
        if any("persistentVolumeClaim" in each for each in pod["spec"].get("volumes", ())):
            assert pod["spec"]["nodeName"] == "n2"
        assert pod["spec"]["nodeName"] == last[uid].node
        assert pod["metadata"]["annotations"][SHARES] == shares_text(last[uid].shares)
    assert len({event.pod for event in facts.of(PodEvicted)}) == 1
    attempts = Counter((event.pod, event.attempt) for event in facts.of(PodBound))
    assert max(attempts.values()) == 1
    assert not [event for event in facts.of(BindFailed) if event.final]
    submitted = Counter(event.uid for event in facts.of(PodSubmitted))
    gone = Counter(event.uid for event in facts.of(PodGone))
    assert max(submitted.values()) == 1
    assert max(gone.values(), default=1) == 1
    for service in going.services.values():
        await service.ready()
        assert 'events_folded_total{type="refused"} 0.0' in (await service.get("/metrics"))[1]
    _, measures = await going.services["watcher"].get("/metrics")
    repairs = [line for line in measures.splitlines() if line.startswith("apportion_watcher_rep")]
    print(f"seed {seed}: killed {going.killed}; {repairs}")  # noqa: T201 - what a round did
