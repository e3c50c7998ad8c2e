"""Doubles of HAMi's and Volcano's schedulers, which place pods as the real schedulers do.

The doubles know the cluster only from annotations. A node's devices are in the plugin's
registration. The allocated shares are in the pods' annotations, whichever scheduler wrote them. A
double locks the node before it binds a pod, and the plugin releases the lock."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

from apportion.core.workloads.dialects.amounts import quantity
from tests.support.foreign_plugins import HAMI_LOCK, VOLCANO_LOCK
from tests.support.kube_api import KubeApi
from tests.support.polling import until

FOREVER_S = 36_000.0
LOOK_S = 0.3
EXPIRES_S = 300
NAMES = {"hami": "hami-scheduler", "volcano": "volcano"}
"""For each system, the `schedulerName` of its pods."""
_ASKS = {
    "hami": ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
    "volcano": tuple(f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "cores")),
}
_ALLOCATED = {"hami": "hami.io/vgpu-devices-allocated", "volcano": "volcano.sh/vgpu-ids-new"}
_NODE = {"hami": "hami.io/vgpu-node", "volcano": "volcano.sh/vgpu-node"}
_LOCK = {"hami": HAMI_LOCK, "volcano": VOLCANO_LOCK}


class Card(NamedTuple):
    """Slots, memory and cores of a registered device: either in total, or the allocated part."""

    slots: int = 0
    memory: int = 0
    cores: int = 0


class ForeignScheduler:
    """The scheduler of HAMi or Volcano for some nodes, which runs until `stop`."""

    def __init__(self, api: KubeApi, system: str, *, seed: int = 0) -> None:
        self._api = api
        self.system = system
        self._random = Random(f"{seed} {system}")
        self._running: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Place pods from now on."""
        self._running = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Place pods until cancelled."""
        await until(self._look, "the end", timeout_s=FOREVER_S, interval_s=LOOK_S)

    async def stop(self) -> None:
        """Stop the scheduler. If an error had already ended it, raise that error."""
        task, self._running = self._running, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _look(self) -> bool:
        pods = (await self._request("GET", "/api/v1/pods"))["items"]
        waiting = [
            pod
            for pod in pods
            if pod["spec"]["schedulerName"] == NAMES[self.system]
            and not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
        ]
        if waiting:
            used = self._used(pods)
            nodes = (await self._request("GET", "/api/v1/nodes"))["items"]
            for node in self._random.sample(nodes, len(nodes)):  # one pod a node, as it is locked
                for pod in waiting:
                    if await self._place(pod, node, used):
                        waiting.remove(pod)
                        break
        return False

    def _used(self, pods: list[dict[str, Any]]) -> dict[str, Card]:
        used: defaultdict[str, Card] = defaultdict(Card)
        for pod in pods:
            notes = pod["metadata"].get("annotations", {})
            ended = pod["status"].get("phase") in {"Succeeded", "Failed"}
            if _NODE[self.system] in notes and not ended:
                for device, memory, cores in _decoded(notes.get(_ALLOCATED[self.system], "")):
                    old = used[device]
                    used[device] = Card(old.slots + 1, old.memory + memory, old.cores + cores)
        return dict(used)

    async def _place(
        self, pod: dict[str, Any], node: dict[str, Any], used: dict[str, Card]
    ) -> bool:
        notes = node["metadata"].get("annotations", {})
        labels = node["metadata"].get("labels", {})
        selected = pod["spec"].get("nodeSelector", {}).items() <= labels.items()
        if node["spec"].get("unschedulable") or not selected or _repelled(pod, node):
            return False
        chosen = self._chosen(pod, _registered(self.system, notes), used)
        if not chosen or not await self._locked(pod, node):
            return False
        text = ";".join(
            "".join(f"{device},NVIDIA,{memory},{cores}:" for device, memory, cores in container)
            for container in chosen
        )
        await self._bind(pod, node["metadata"]["name"], text)
        for device, memory, cores in (each for container in chosen for each in container):
            old = used.get(device, Card())
            used[device] = Card(old.slots + 1, old.memory + memory, old.cores + cores)
        return True

    def _chosen(
        self, pod: dict[str, Any], cards: dict[str, Card], used: dict[str, Card]
    ) -> list[list[tuple[str, int, int]]]:
        """Return the devices of each container, or an empty list if the pod does not fit."""
        now, chosen = dict(used), []
        for container in pod["spec"]["containers"]:
            limits = container["resources"]["limits"]
            # the API server writes 1000 as "1k"
            asked = (quantity(limits.get(name, 0), name) for name in _ASKS[self.system])
            count, memory, cores = map(int, asked)
            fitting = [
                device
                for device, card in cards.items()
                for had in [now.get(device, Card())]
                if had.slots < card.slots
                and had.memory + memory <= card.memory
                and had.cores + cores <= card.cores
            ]
            if len(fitting) < count:
                return []
            taken = self._random.sample(fitting, count)
            chosen.append([(device, memory, cores) for device in taken])
            for device in taken:
                had = now.get(device, Card())
                now[device] = Card(had.slots + 1, had.memory + memory, had.cores + cores)
        return chosen

    async def _locked(self, pod: dict[str, Any], node: dict[str, Any]) -> bool:
        """Lock the node, or return False. HAMi's lock is taken over if its pod no longer exists."""
        about, key = node["metadata"], _LOCK[self.system]
        time, *owner = about.get("annotations", {}).get(key, "").split(",")
        age_s = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds() if time else 0
        if time and age_s < EXPIRES_S and not (owner and await self._gone(*owner)):
            return False
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = f"{now},{pod['metadata']['namespace']},{pod['metadata']['name']}"
        lock = {key: name if self.system == "hami" else now}
        body = {"metadata": {"resourceVersion": about["resourceVersion"], "annotations": lock}}
        try:
            await self._patch(f"/api/v1/nodes/{about['name']}", body)
        except AssertionError as refusal:
            if ": 409 " in str(refusal):
                return False
            raise
        return True

    async def _gone(self, namespace: str, name: str) -> bool:
        found = await self._request("GET", f"/api/v1/namespaces/{namespace}/pods")
        return all(each["metadata"]["name"] != name for each in found["items"])

    async def _bind(self, pod: dict[str, Any], node: str, text: str) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        seconds = str(int(datetime.now(UTC).timestamp()))
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        meta: dict[str, Any] = {"name": about["name"], "uid": about["uid"]}
        if self.system == "hami":
            notes = {
                "hami.io/vgpu-node": node, "hami.io/vgpu-time": seconds,
                "hami.io/vgpu-devices-allocated": f"{text};",
                "hami.io/vgpu-devices-to-allocate": f"{text};",
                "hami.io/bind-phase": "allocating", "hami.io/bind-time": seconds,
            }  # fmt: skip
            labels = {"hami.io/vgpu-node": node}
            await self._patch(path, {"metadata": {"annotations": notes, "labels": labels}})
        else:
            meta["annotations"] = {
                "volcano.sh/vgpu-node": node, "volcano.sh/vgpu-time": seconds,
                "volcano.sh/vgpu-ids-new": text, "volcano.sh/devices-to-allocate": text,
                "volcano.sh/bind-phase": "allocating", "volcano.sh/bind-time": seconds,
            }  # fmt: skip
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await self._request("POST", f"{path}/binding", binding)

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        path = f"{path}?fieldManager=scheduler"
        await asyncio.to_thread(self._api.request, "PATCH", path, body, merge=True)

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._api.request, method, path, body)


def _repelled(pod: dict[str, Any], node: dict[str, Any]) -> bool:
    """Return True if the pod does not tolerate a taint of the node, by key and value."""
    tolerated = {
        (each.get("key"), each.get("value")) for each in pod["spec"].get("tolerations", ())
    }
    taints = [
        each for each in node["spec"].get("taints", ()) if each["effect"] != "PreferNoSchedule"
    ]
    return any(
        tolerated.isdisjoint({(each["key"], each.get("value")), (each["key"], None), (None, None)})
        for each in taints
    )


def _decoded(text: str) -> Iterator[tuple[str, int, int]]:
    for part in text.replace(";", ":").split(":"):
        if "," in part:
            device, _, memory, cores = part.split(",")
            yield device, int(memory), int(cores)


def _registered(system: str, notes: dict[str, str]) -> dict[str, Card]:
    if system == "hami":
        entries = json.loads(notes.get("hami.io/node-nvidia-register", "[]"))
        return {
            each["id"]: Card(each["count"], each["devmem"], each["devcore"])
            for each in entries
            if each.get("health")
        }
    cards = {}
    for part in notes.get("volcano.sh/node-vgpu-register", "").split(":"):
        if part:
            device, slots, memory, *_ = part.split(",")
            cards[device] = Card(int(slots), int(memory), 100)
    return cards
