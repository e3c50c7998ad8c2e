"""Tests of how the binder takes and releases the lock that HAMi's and Volcano's device plugins
expect on a node."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from apportion.binder.binding import Failed
from apportion.binder.kubernetes import node_lock
from apportion.binder.kubernetes.node_lock import OWNER, NodeLocks
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.dialects import hami, volcano_vgpu
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Plugin, PodPlaced
from tests.support.fleet import gpu, observed, registered
from tests.support.kube_objects import kube_node, kube_pod
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.pods import placed, share

DIALECTS = {"hami": hami.NAME, "volcano": volcano_vgpu.NAME}
LOCKS = {"hami": hami.LOCK.key, "volcano": volcano_vgpu.LOCK.key}
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"


class Cluster:
    """An API server in memory with node n1, whose devices another system's plugin allocates."""

    def __init__(self, plugin: Plugin = "hami") -> None:
        self.server = MemoryKube()
        self.api = MemoryKubeApi(self.server)
        self.plugin = plugin
        ledger = Ledger(observed("n1"), registered("n1", plugin, devices=(gpu("g0"),)))
        self.locks = NodeLocks(self.api, ledger.state, SystemClock())
        self.node: NodeState = ledger.node()

    async def create(self, *names: str, node: str = "") -> None:
        """Create node n1 and a pod for each name. If `node` is set, the pods are bound to that
        node."""
        await self._send("POST", NODES, kube_node("n1"))
        for name in names:
            made = kube_pod(name, {})
            made["spec"] |= {"nodeName": node} if node else {}
            await self._send("POST", PODS, made)

    async def write(self, notes: dict[str, str | None]) -> None:
        """Write annotations of the node, as another scheduler or the plugin does."""
        await self._send("PATCH", f"{NODES}/n1", {"metadata": {"annotations": notes}})

    async def notes(self) -> dict[str, str]:
        """Return the node's annotations."""
        found = await self._send("GET", f"{NODES}/n1", None)
        notes: dict[str, str] = found["metadata"].get("annotations") or {}
        return notes

    async def take(self, name: str) -> Failed | None:
        """Take the node's lock for the pod."""
        return await self.locks.take(self.placed(name), DIALECTS[self.plugin], self.node)

    async def release(self, name: str) -> None:
        """Release the node's lock, as the binder does if it could not bind the pod."""
        await self.locks.release(self.placed(name), DIALECTS[self.plugin], self.node)

    def placed(self, name: str) -> PodPlaced:
        """Return the placement of the pod on node n1."""
        return placed(name, "n1", shares=[share("g0")])

    async def pod(self, name: str, notes: dict[str, str], phase: str) -> dict[str, str]:
        """Set the pod's annotations and phase, and let the binder withdraw the pod if it has ended.
        Return the pod's annotations after that."""
        path = f"{PODS}/{name}"
        await self._send("PATCH", path, {"metadata": {"annotations": notes}})
        await self._send("PATCH", f"{path}/status", {"status": {"phase": phase}})
        await self.locks.withdraw("n1")
        found = await self._send("GET", path, None)
        after: dict[str, str] = found["metadata"]["annotations"]
        return after

    async def _send(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = await self.api.request(method, path, body=data, content_type=kind)
        assert answer.ok, answer
        return msgspec.json.decode(answer.body)


def minutes_ago(minutes: int) -> str:
    """Return a time in the past, as Go formats it."""
    return (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("plugin", ["hami", "volcano"])
async def test_a_free_lock_is_taken_again_and_released(plugin: Plugin) -> None:
    """If the binder takes the lock again for the same pod, the lock stays as it is. A release
    removes the lock only if it is for that pod."""
    cluster = Cluster(plugin)
    await cluster.create("p")
    assert await cluster.take("p") is None
    lock = (await cluster.notes())[LOCKS[plugin]]
    assert await cluster.take("p") is None
    assert (await cluster.notes())[LOCKS[plugin]] == lock
    await cluster.release("q")
    assert LOCKS[plugin] in await cluster.notes()
    await cluster.release("p")
    assert not {LOCKS[plugin], OWNER} & (await cluster.notes()).keys()


async def test_volcanos_lock_is_a_time_alone() -> None:
    """Volcano's lock is only a time, because Volcano's scheduler reads it as a time. The binder
    therefore writes the pod to an annotation of our own."""
    cluster = Cluster("volcano")
    await cluster.create("p")
    await cluster.take("p")
    notes = await cluster.notes()
    assert datetime.fromisoformat(notes[LOCKS["volcano"]]).tzinfo is not None
    assert notes[OWNER] == f"{notes[LOCKS['volcano']]},default,p"


async def test_a_held_lock_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binder waits while another pod has the lock. If that takes too long, the error names the
    other pod. Once the plugin has removed the lock, the binder takes it."""
    cluster = Cluster()
    await cluster.create("p", "other")
    await cluster.write({LOCKS["hami"]: f"{minutes_ago(1)},default,other"})
    monkeypatch.setattr(node_lock, "WAIT_S", 1.0)
    failed = await cluster.take("p")
    assert failed is not None
    assert failed.waits
    assert "default/other" in failed.message
    monkeypatch.setattr(node_lock, "WAIT_S", 60.0)
    waiting = asyncio.create_task(cluster.take("p"))
    await cluster.write({LOCKS["hami"]: None})
    assert await waiting is None
    assert (await cluster.notes())[LOCKS["hami"]].endswith(",default,p")


@pytest.mark.parametrize(
    "lock",
    [f"{minutes_ago(1)},default,gone", f"{minutes_ago(6)},default,other", minutes_ago(6), "?"],
    ids=["of a deleted pod", "older than five minutes", "old, of no pod", "not a time"],
)
async def test_a_stale_lock_is_taken_over(lock: str) -> None:
    """As in HAMi, the binder takes over a lock if the lock's pod no longer exists or the lock is
    more than five minutes old. It also takes over a lock without a valid time."""
    cluster = Cluster()
    await cluster.create("p", "other")
    await cluster.write({LOCKS["hami"]: lock})
    assert await cluster.take("p") is None
    assert (await cluster.notes())[LOCKS["hami"]].endswith(",default,p")


async def test_one_of_many_takes_the_lock() -> None:
    """If the binder wants the lock for many pods of one node at once, exactly one of the pods gets
    it."""
    cluster = Cluster()
    names = [f"p{n}" for n in range(8)]
    await cluster.create(*names)
    tasks = [asyncio.create_task(cluster.take(name)) for name in names]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    for task in left:
        task.cancel()
    owner = (await cluster.notes())[LOCKS["hami"]].rpartition(",")[2]
    assert tasks[names.index(owner)] in done


async def test_a_binder_that_may_not_lock_says_how_to_allow_it() -> None:
    """If the API server refuses to set the lock, the error names the permission that the binder may
    lack."""
    cluster = Cluster()
    failed = await cluster.take("p")  # the node does not exist
    assert failed is not None
    assert not failed.final
    assert "allow the binder to get nodes and to patch nodes/status" in failed.message


async def test_both_locks_of_a_pod_with_devices_of_two_vendors_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod with devices of two vendors takes one lock for each vendor. If its binding fails, the
    binder releases both locks. If another pod has the second lock, the binder releases the
    first."""
    monkeypatch.setattr(node_lock, "WAIT_S", 0.1)
    cluster = Cluster()
    await cluster.create("p", "other")
    both, second = "hami+cambricon", "cambricon.com/dsmlu.lock"
    placed = cluster.placed("p")
    assert await cluster.locks.take(placed, both, cluster.node) is None
    assert {LOCKS["hami"], second} <= (await cluster.notes()).keys()
    await cluster.locks.release(placed, both, cluster.node)
    assert not {LOCKS["hami"], second, OWNER} & (await cluster.notes()).keys()
    await cluster.write({second: minutes_ago(1)})
    assert isinstance(await cluster.locks.take(placed, both, cluster.node), Failed)
    assert LOCKS["hami"] not in await cluster.notes()


QUEUES = {"hami": hami.TO_ALLOCATE, "volcano": volcano_vgpu.TO_ALLOCATE}


@pytest.mark.parametrize("plugin", ["hami", "volcano"])
async def test_the_lock_of_a_pod_that_has_ended_is_released(plugin: Plugin) -> None:
    """If a plugin dies, the kubelet fails the pod that the plugin was serving. The binder then
    removes the pod from the plugin's queue and releases the pod's lock. It does neither while the
    pod is pending."""
    cluster = Cluster(plugin)
    await cluster.create("p")
    await cluster.take("p")
    queue = QUEUES[plugin]
    notes = {queue: "g0,NVIDIA,1000,0:;", "note": "x"}
    assert await cluster.pod("p", notes, "Pending") == notes
    assert LOCKS[plugin] in await cluster.notes()
    assert await cluster.pod("p", notes, "Failed") == notes | {queue: ""}
    assert not {LOCKS[plugin], OWNER} & (await cluster.notes()).keys()


async def test_the_lock_of_a_pod_that_is_gone_is_released() -> None:
    """If a pod was deleted before the plugin served it, the binder releases the pod's lock."""
    cluster = Cluster()
    await cluster.create("p")
    await cluster.take("gone")
    await cluster.locks.withdraw("n1")
    assert LOCKS["hami"] not in await cluster.notes()


async def test_the_lock_of_a_pod_that_came_back_elsewhere_is_removed() -> None:
    """A StatefulSet may create a pod again with the same name, on another node. The binder then
    releases the old pod's lock and keeps the new pod's annotations."""
    cluster = Cluster()
    await cluster.create("p", node="n2")
    await cluster.take("p")
    notes = {"hami.io/bind-phase": "allocating", "hami.io/vgpu-devices-to-allocate": "GPU-a"}
    assert notes.items() <= (await cluster.pod("p", notes, "Pending")).items()
    assert LOCKS["hami"] not in await cluster.notes()


@pytest.mark.parametrize("plugin", ["hami", "volcano"])
async def test_a_lock_that_was_taken_for_a_served_pod_is_released(plugin: Plugin) -> None:
    """A restarted binder may take the lock again for a pod that is already bound. If the plugin has
    already served the pod, the plugin does not remove this lock. The binder then removes it."""
    cluster = Cluster(plugin)
    await cluster.create("p")
    await cluster.take("p")
    phase = f"{'hami.io' if plugin == 'hami' else 'volcano.sh'}/bind-phase"
    for value, locked in (("allocating", True), ("success", False)):
        await cluster.pod("p", {phase: value}, "Running")
        await cluster.locks.release(
            cluster.placed("p"), DIALECTS[plugin], cluster.node, served=True
        )  # fmt: skip
        assert (LOCKS[plugin] in await cluster.notes()) is locked
