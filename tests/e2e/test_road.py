"""A cluster goes from HAMi and Volcano to Apportion and back, under load.

50 pods of HAMi and 20 of Volcano run all the time. Another 200 pods arrive and leave, while the
cluster goes from shadow mode to our scheduler, to our agents, and back. In some rounds processes
are killed at random. A failed round prints its random seed, and `APPORTION_ROAD_SEED` repeats the
round of that seed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click import echo

from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import DEVICE_PLUGIN, NodeObserved, PodAdopted, PodEvicted, PodPlaced
from tests.support.foreign_plugins import HAMI_LOCK, MIB, STEPS, VOLCANO_LOCK, ForeignPlugin
from tests.support.foreign_schedulers import NAMES, ForeignScheduler
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.node_kubelet import NodeKubelet
from tests.support.polling import until
from tests.support.processes import ServiceProcess

SPEC = "4xT4"
NODES = {"h1": "hami", "h2": "hami", "h3": "hami", "v1": "volcano", "v2": "volcano"}
NO_CDI = "h2"
"""The agent of this node serves a container runtime without CDI."""
RUNNING = {"hami": 50, "volcano": 20}
SHADOW, ALONE, WITH_AGENTS, BACK, THEIRS = 20, 60, 60, 40, 20
"""How many pods arrive in each part of the road."""
LIVE_MAX = 24
AT_ONCE = 4
PATIENCE_S = 180.0
KILLS = 3
"""In each part in which Apportion places pods."""
OURS = "apportion"
TRAFFIC = {"traffic": "yes"}
SEED = int(os.environ.get("APPORTION_ROAD_SEED", "0"))
ROUNDS = [SEED] if SEED else range(1, 11)


def _limits(system: str, count: int, memory: int, cores: int) -> dict[str, str]:
    if system == "hami":
        return share(memory, cores) | {"nvidia.com/gpu": str(count)}
    names = (f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "cores"))
    amounts = {name: str(each) for name, each in zip(names, (count, memory, cores), strict=True)}
    return {name: amount for name, amount in amounts.items() if amount != "0"}


class Road:
    """A cluster on its way from HAMi and Volcano to Apportion and back, and its users."""

    def __init__(self, world: KubeWorld, seed: int) -> None:
        self.world = world
        self.chance = Random(f"{seed} pods")
        self.whim = Random(f"{seed} kills")
        self.kubelets: dict[str, NodeKubelet] = {}
        self.plugins: dict[str, ForeignPlugin] = {}
        self.peers = {
            system: ForeignScheduler(world.plane.api, system, seed=seed) for system in RUNNING
        }
        self.services: dict[str, ServiceProcess] = {}
        self.agents: dict[str, ServiceProcess] = {}
        self.turns = {node: asyncio.Lock() for node in NODES}
        """Held while a node is moved, or its agent or plugin is killed."""
        self.scheduler: dict[str, str] = dict(NAMES)
        self.made = self.due = 0
        self.deleted: set[str] = set()
        self.before: dict[str, Any] = {}
        self.killed: list[str] = []

    # ---------------------------------------------------------------- users

    def _pod(self, name: str, system: str, labels: dict[str, str]) -> dict[str, Any]:
        count = 2 if self.chance.random() < 1 / 8 else 1
        # often 1000, which the API server writes as "1k"
        memory, cores = self.chance.randrange(300, 1500, 50), self.chance.choice((0, 0, 5))
        pod = kube_pod(
            name, _limits(system, count, memory, cores), labels=labels,
            annotations={"example.com/team": "research"},
            nodeSelector={"pool": system}, schedulerName=self.scheduler[system],
        )  # fmt: skip
        if system == "hami" and self.chance.random() < 1 / 8:
            (first,) = pod["spec"]["containers"]
            limits = {"limits": _limits(system, 1, memory // 2, 0)}
            pod["spec"]["containers"].append(first | {"name": "side", "resources": limits})
        return pod

    async def pods(self, labels: dict[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the pods with these labels."""
        path = "/api/v1/pods"
        for key, value in (labels or {}).items():
            path += f"?labelSelector={key}%3D{value}"
        api = self.world.plane.api
        found: list[dict[str, Any]] = (await asyncio.to_thread(api.request, "GET", path))["items"]
        return found

    async def _delete(self, pod: dict[str, Any]) -> None:
        """Delete the pod as a user does. The pod ends when its kubelet has stopped it."""
        name = pod["metadata"]["name"]
        self.deleted.add(name)
        path = f"/api/v1/namespaces/default/pods/{name}"
        await asyncio.to_thread(self.world.plane.api.request, "DELETE", path)

    async def users(self) -> None:
        """Create and delete pods at the planned times, as users would, until cancelled."""
        await until(self._use, "the end", timeout_s=36_000, interval_s=0.3)

    async def _use(self) -> bool:
        pods = [
            pod for pod in await self.pods(TRAFFIC) if not pod["metadata"].get("deletionTimestamp")
        ]
        for pod in pods:
            if pod["status"]["phase"] == "Failed":  # a controller makes another one
                await self._delete(pod)
                self.due += 1
        live = [pod for pod in pods if pod["status"]["phase"] != "Failed"]
        new = min(AT_ONCE, self.due - self.made)
        over = len(live) + new - LIVE_MAX
        if over > 0:
            running = [pod for pod in live if pod["status"]["phase"] == "Running"]
            for pod in self.chance.sample(running, min(over, len(running))):
                await self._delete(pod)
            if live and self.chance.random() < 1 / 5:  # perhaps one that has not started
                pod = self.chance.choice(live)
                ours = pod["spec"]["schedulerName"] == OURS  # theirs would stay locked for minutes
                if ours and pod["metadata"]["name"] not in self.deleted:
                    await self._delete(pod)
            new = min(new, LIVE_MAX - len(live) + over)
        for _ in range(new):
            self.made += 1
            system = self.chance.choice(("hami", "hami", "volcano"))
            await self.world.plane.apply(self._pod(f"t{self.made}", system, TRAFFIC))
        return False

    async def arrived(self) -> None:
        """Wait until every planned pod was created, and has started or was deleted."""
        pods: list[dict[str, Any]] = []

        async def there() -> bool:
            nonlocal pods
            for kubelet in self.kubelets.values():
                kubelet.check()
            pods = [
                pod
                for pod in await self.pods(TRAFFIC)
                if pod["status"]["phase"] != "Running" or pod["metadata"].get("deletionTimestamp")
            ]
            return self.made == self.due and not pods

        try:
            await until(there, "all pods to arrive", timeout_s=PATIENCE_S, interval_s=0.3)
        except AssertionError as error:
            told = [await self.world.plane.user("describe", "pod", pod["metadata"]["name"])
                    for pod in pods[:2]]  # fmt: skip
            held = [f"{node}: {key} {value}" for node, key, value in await self.locks()]
            failed = [f"{each.node}: {each.refused}" for each in self.kubelets.values()]
            logged = [
                f"agent of {node}: {line}"
                for node, agent in self.agents.items()
                for line in agent.log[-3:]
            ]
            lines = [str(error), *held, *failed, *logged, *told]
            raise AssertionError("\n".join(lines)) from None

    # ------------------------------------------------------------- operators

    async def mark(self, node: str, **change: Any) -> None:
        """Change the labels, annotations or spec of a node."""
        body: dict[str, Any] = {}
        if "unschedulable" in change:
            body["spec"] = {"unschedulable": change.pop("unschedulable")}
        if change:
            body["metadata"] = change
        api = self.world.plane.api
        await asyncio.to_thread(api.request, "PATCH", f"/api/v1/nodes/{node}", body, merge=True)

    async def quiet(self, node: str) -> None:
        """Cordon the node, and wait until all pods that are bound there have started."""
        await self.mark(node, unschedulable=True)
        what = f"the scheduler to know that {node} is cordoned"
        await until(lambda: self._cordoned(node), what, timeout_s=PATIENCE_S, interval_s=0.3)

        async def started() -> bool:
            known = {event.pod for event in self.world.facts.of(PodPlaced) if event.node == node}
            return not [
                pod
                for pod in await self.pods()  # read once: a pod may be bound between two reads
                for at in [pod["spec"].get("nodeName")]
                if (at == node and pod["status"]["phase"] == "Pending")
                or (not at and pod["metadata"]["uid"] in known)
            ]

        await until(started, f"the pods of {node} to start", timeout_s=PATIENCE_S, interval_s=0.3)

    async def _cordoned(self, node: str) -> bool:
        """Return True if the scheduler has read the node's cordon.

        The test must also have read every event that the scheduler has read."""
        seen = ((at, event.data) for at, event in reversed(self.world.facts.events)
                if isinstance(event.data, NodeObserved) and event.data.node == node)  # fmt: skip
        at, observed = next(seen)
        try:
            _, measures = await self.services["scheduler"].get("/metrics")
        except (OSError, ValueError):  # it was killed
            return False
        lines = (line for line in measures.splitlines() if line.startswith("apportion_fold_rev"))
        folded = float(next(lines, "x 0").split()[1])
        return observed.unschedulable and at <= folded <= self.world.facts.revision

    async def to_agent(self, node: str) -> None:
        """Replace the plugin of a node with our agent, while its pods run."""
        async with self.turns[node]:
            await self.quiet(node)
            plugin, kubelet = self.plugins[node], self.kubelets[node]
            await plugin.stop()
            kubelet.offer({})
            gone = dict.fromkeys(plugin.registrations)
            await self.mark(node, annotations=gone, labels={DEVICE_PLUGIN: None})
            folder = kubelet.fake.folder
            options = ["--simulate", SPEC, "--node", node, "--kubelet", str(folder)]
            options += ["--cdi", str(kubelet.fake.cdi), "--state", str(folder / "state")]
            options += ["--no-cdi"] if node == NO_CDI else []
            self.agents[node] = await self.world.start("agent", *options)
            await kubelet.fake.offered(plugin.resource, plugin.units)
            await self.mark(node, unschedulable=None)

    async def to_plugin(self, node: str) -> None:
        """Give a node back to its plugin, while its pods run."""
        async with self.turns[node]:
            await self.quiet(node)
            assert await self.agents.pop(node).stop() == 0
            await self.mark(node, labels={DEVICE_PLUGIN: NODES[node]})
            await self.plugins[node].start(self.kubelets[node])
            await self.mark(node, unschedulable=None)

    # ---------------------------------------------------------------- chance

    async def moment(self, longest_s: float = 1.5) -> None:
        """Wait for a random time, so that each round kills at different moments."""
        due = asyncio.get_running_loop().create_future()
        due.get_loop().call_later(self.whim.uniform(0.1, longest_s), due.set_result, None)
        await due

    async def kill(self, *kinds: str) -> None:
        """Kill random processes of these kinds one after another, and start each again."""
        for _ in range(KILLS):
            await self.moment(4.0)
            kind = self.whim.choice(kinds)
            if kind == "agent" and self.agents:
                node = self.whim.choice(sorted(self.agents))
                async with self.turns[node]:
                    if node in self.agents:
                        await self._killed(f"agent of {node}", self.agents[node])
            elif kind in {"agent", "plugin"}:
                node = self.whim.choice(sorted(NODES))
                async with self.turns[node]:
                    if node not in self.agents:
                        await self._kill_plugin(node)
            else:
                await self._killed(kind, self.services[kind])

    async def _killed(self, name: str, process: ServiceProcess) -> None:
        self.killed.append(name)
        await process.kill()
        await self.moment()
        await process.start()
        await process.ready()

    async def _kill_plugin(self, node: str) -> None:
        step = self.whim.choice(STEPS)
        self.killed.append(f"plugin of {node} {step}")
        if not await self.plugins[node].die(step, timeout_s=10.0):
            self.killed[-1] = f"idle plugin of {node}"
        await self.moment()
        await self.plugins[node].start(self.kubelets[node])

    # ---------------------------------------------------------------- checks

    def right(self) -> None:
        """Check that each container got its own pod's devices, and was created only once."""
        for kubelet in self.kubelets.values():
            wrong = {at: each for at, each in kubelet.handed.items() if each[0] != each[1]}
            assert not wrong, wrong
            assert max(kubelet.made.values(), default=1) == 1
            excused = any(name.endswith(kubelet.node) or f" {kubelet.node} " in name
                          for name in self.killed)  # fmt: skip
            assert excused or not kubelet.refused, kubelet.refused

    async def fitting(self) -> None:
        """Check that the running containers of a device got at most the device's memory."""
        held: Counter[str] = Counter()
        alive = {pod["metadata"]["name"] for pod in await self.pods()}
        for kubelet in self.kubelets.values():
            for (name, _), (given, _) in kubelet.handed.items():
                if name in alive:
                    for device, limit in given:
                        held[device] += int(limit.removesuffix("m"))
        assert max(held.values()) <= MIB, held

    async def same(self) -> None:
        """Check that the pods from before the migration still run, unchanged.

        Of the pods that came later, only those that users deleted may be gone."""
        now = {pod["metadata"]["name"]: _facts(pod) for pod in await self.pods()}
        for name, facts in self.before.items():
            assert now[name] == facts
        gone = {f"t{at}" for at in range(1, self.made + 1)} - now.keys()
        assert gone <= self.deleted, gone - self.deleted

    async def locks(self) -> list[tuple[str, str, str]]:
        """Return the node locks as tuples of node, annotation key and annotation value."""
        return [
            (node["metadata"]["name"], key, value)
            for node in (await self.world.plane.get("nodes"))["items"]
            for key, value in node["metadata"].get("annotations", {}).items()
            if key in {HAMI_LOCK, VOLCANO_LOCK}
        ]

    async def unlocked(self) -> None:
        """Wait until no node is locked."""

        async def free() -> bool:
            return not await self.locks()

        await until(free, "no node to be locked", timeout_s=PATIENCE_S, interval_s=0.5)

    async def verified(self) -> Any:
        """Return the answer of `apportion verify`."""
        url = self.world.bus.server.url_for("operator")
        words = [sys.executable, "-m", "apportion.cli.main", "verify", "--json", "--nats", url]
        done = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


def _facts(pod: dict[str, Any]) -> dict[str, Any]:
    about = pod["metadata"]
    kept = {key: about.get(key) for key in ("uid", "annotations", "labels")}
    return kept | {"node": pod["spec"].get("nodeName"), "phase": pod["status"]["phase"]}


@contextlib.asynccontextmanager
async def road(world: KubeWorld, seed: int) -> AsyncIterator[Road]:
    """Yield a cluster on which pods of HAMi and of Volcano run."""
    going = Road(world, seed)
    labels = {node: {"pool": system} for node, system in NODES.items()}
    await world.plane.apply(*(kube_node(node, labels=labels[node]) for node in NODES))
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="road")))
        for node, system in NODES.items():
            ids = [device.id for device in simulated_devices(node, SPEC)]
            plugin = going.plugins[node] = ForeignPlugin(world.plane.api, node, system, ids=ids)
            kubelet = NodeKubelet(world.plane.api, node, folder / node, seed=seed)
            going.kubelets[node] = await stack.enter_async_context(kubelet)
            stack.push_async_callback(plugin.stop)
            await plugin.start(kubelet)
        for peer in going.peers.values():
            peer.start()
            stack.push_async_callback(peer.stop)
        first = [
            going._pod(f"{system}-{at}", system, {"app": system})
            for system, count in RUNNING.items()
            for at in range(count)
        ]
        await world.plane.apply(*first)

        async def running() -> bool:
            return all(pod["status"]["phase"] == "Running" for pod in await going.pods())

        await until(running, "the first pods to run", timeout_s=PATIENCE_S, interval_s=0.5)
        going.before = {pod["metadata"]["name"]: _facts(pod) for pod in await going.pods()}
        users = asyncio.create_task(going.users())
        try:
            yield going
        finally:
            users.cancel()
            await asyncio.wait([users])
            if not users.cancelled():
                users.result()


async def walk(going: Road, *, kills: bool) -> None:
    """Move the cluster to Apportion and back, and check the pods after each step.

    With `kills`, kill random processes during each step."""
    world = going.world

    async def part(pods: int, *kinds: str) -> None:
        going.due += pods
        await asyncio.gather(*([going.kill(*kinds)] if kills else []), going.arrived())
        going.right()
        await going.fitting()

    # Shadow mode: their schedulers place the pods.
    going.services["watcher"] = await world.start("watcher", "--scheduler-name", OURS)
    going.services["scheduler"] = await world.start("scheduler")
    await world.facts.count(PodAdopted, sum(RUNNING.values()))
    await part(SHADOW, "watcher", "scheduler")
    assert not world.facts.of(PodPlaced)
    # Our scheduler, with their plugins.
    for peer in going.peers.values():
        await peer.stop()
    going.scheduler = dict.fromkeys(NODES.values(), OURS)
    for node, system in NODES.items():
        await going.mark(node, labels={DEVICE_PLUGIN: system})
    going.services["binder"] = await world.start("binder")
    services = ("watcher", "scheduler", "binder")
    await part(ALONE, *services, "plugin", "plugin")
    # Our agents, node by node, and back to their plugins.
    for pods, move in ((WITH_AGENTS, going.to_agent), (BACK, going.to_plugin)):
        nodes = going.chance.sample(sorted(NODES), len(NODES))

        async def moving(nodes: list[str] = nodes, pods: int = pods, move: Any = move) -> None:
            for node in nodes:
                going.due += pods // len(nodes) // 2
                await move(node)

        await asyncio.gather(moving(), part(0, *services, "agent", "agent"))
        await part(pods // 2, *services, "agent", "plugin")
    # Their schedulers.
    await going.unlocked()
    await world.stop("binder")
    for node in NODES:
        await going.mark(node, labels={DEVICE_PLUGIN: None})
    going.scheduler = dict(NAMES)
    for peer in going.peers.values():
        peer.start()
    await part(THEIRS, "watcher", "scheduler")
    await going.unlocked()
    await going.same()
    assert not world.facts.of(PodEvicted)


@pytest.mark.timeout(900)
async def test_pods_run_on_while_the_cluster_adopts_apportion_and_leaves_it(
    world: KubeWorld,
) -> None:
    """While the cluster adopts Apportion and leaves it again, no pod is restarted.

    No device is oversold, and each container gets its own pod's devices."""
    async with road(world, 0) as going:
        await walk(going, kills=False)
        verified = await going.verified()
    assert verified["ok"]
    assert going.made == SHADOW + ALONE + WITH_AGENTS + BACK + THEIRS


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed == ROUNDS[0] else pytest.mark.nightly) for seed in ROUNDS],
)
async def test_processes_that_die_on_the_way_change_nothing(world: KubeWorld, seed: int) -> None:
    """Kills of services, agents and plugins on the way restart no pod and oversell no device."""
    async with road(world, seed) as going:
        try:
            await walk(going, kills=True)
        finally:
            echo(f"seed {seed}: killed {going.killed}")
        verified = await going.verified()
    assert verified["ok"]
