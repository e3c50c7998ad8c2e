"""Doubles of HAMi's and Volcano's device plugins, and of the kubelet that calls them.

They find the pod to serve as the plugins' own sources do. HAMi's (`GetPendingPod`) serves the pod
that the node lock names, else the first pending pod of the node. Volcano's serves the oldest pod
with as many devices as the kubelet asks for. The kubelet starts pods in a drawn order. So if a
scheduler breaks the plugin's rules, a container gets the devices of another pod."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

from tests.support.kube_api import KubeApi
from tests.support.polling import until

HAMI_LOCK, VOLCANO_LOCK = "hami.io/mutex.lock", "hamivgpu"
NEVER = str(2**64 - 1)
"""Volcano's plugin writes this time on a pod that has its devices, so the pod is the youngest."""


class ForeignPlugin:
    """The device plugin of HAMi or Volcano on one node, with the node's kubelet.

    `handed` has, for each container that the kubelet started, the devices that the plugin gave it
    and those that its pod's annotations name."""

    def __init__(
        self, api: KubeApi, node: str, system: str, cards: int, *, seed: int = 0, mib: int = 15_360
    ) -> None:
        self._api = api
        self.node = node
        self.system = system
        self._cards = [f"GPU-{node}-{at}" for at in range(cards)]
        self._mib = mib
        self._random = Random(seed)
        self._started: set[str] = set()
        self.handed: dict[tuple[str, str], tuple[list[str], list[str]]] = {}

    async def register(self) -> None:
        """Register the devices, as the plugin does every 30 s, and offer them to the kubelet."""
        if self.system == "hami":
            entries = [
                {"id": card, "index": at, "count": 10, "devmem": self._mib, "devcore": 100,
                 "type": "NVIDIA-Tesla T4", "mode": "hami-core", "health": True}
                for at, card in enumerate(self._cards)
            ]  # fmt: skip
            notes = {
                "hami.io/node-nvidia-register": json.dumps(entries),
                "hami.io/node-handshake": "Reported_2026-11-29 10:00:00",
            }
            offered = {"nvidia.com/gpu": str(10 * len(self._cards))}
        else:
            rest = f"10,{self._mib},NVIDIA-Tesla T4,true,hami-core"
            text = "".join(f"{card},{rest}:" for card in self._cards)
            notes = {"volcano.sh/node-vgpu-register": text}
            offered = {
                "volcano.sh/vgpu-number": str(10 * len(self._cards)),
                "volcano.sh/vgpu-memory": str(self._mib * len(self._cards)),
                "volcano.sh/vgpu-cores": str(100 * len(self._cards)),
            }
        amounts = {"capacity": offered, "allocatable": offered}
        await self._patch(f"/api/v1/nodes/{self.node}", {"metadata": {"annotations": notes}})
        await self._patch(f"/api/v1/nodes/{self.node}/status", {"status": amounts})

    async def run(self) -> None:
        """Start the pods of the node, in a drawn order, until cancelled."""
        while True:
            for pod in await until(self._new, "pods to start", timeout_s=3600, interval_s=0.02):
                self._started.add(pod["metadata"]["uid"])
                await self._start(pod)

    async def _new(self) -> list[dict[str, Any]]:
        pods = [
            pod
            for pod in await self._pods()
            if pod["metadata"]["uid"] not in self._started
            if not pod["metadata"].get("deletionTimestamp")
        ]
        return self._random.sample(pods, len(pods))

    async def _start(self, pod: dict[str, Any]) -> None:
        name = "nvidia.com/gpu" if self.system == "hami" else "volcano.sh/vgpu-number"
        for container in pod["spec"]["containers"]:
            count = int(container["resources"].get("limits", {}).get(name, 0))
            if count:
                given = await self._allocate(count)
                own = json.loads(pod["metadata"]["annotations"]["apportion.dev/shares"])
                wanted = [s["device"] for s in own if s["container"] == container["name"]]
                self.handed[pod["metadata"]["name"], container["name"]] = (given, wanted)
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/status"
        await self._patch(path, {"status": {"phase": "Running"}})

    async def _allocate(self, count: int) -> list[str]:
        """Give devices to the pod that the plugin takes for the one which the kubelet starts."""
        pod = await (self._pending() if self.system == "hami" else self._oldest(count))
        notes = pod["metadata"]["annotations"]
        prefix = "hami.io/vgpu-" if self.system == "hami" else "volcano.sh/"
        key, phase = f"{prefix}devices-to-allocate", f"{self.system}.io/bind-phase"
        segments = notes[key].split(";")
        at = next(at for at, segment in enumerate(segments) if "," in segment)
        given = [part.split(",")[0] for part in segments[at].split(":") if "," in part]
        assert len(given) == count, f"{pod['metadata']['name']}: {given}, but {count} are wanted"
        segments[at] = ""
        left = ";".join(segments)
        change = {key: left}
        done = not any("," in segment for segment in segments)
        if done and self.system == "hami":
            change[phase] = "success"
        elif done:
            change |= {"volcano.sh/bind-phase": "success", "volcano.sh/vgpu-time": NEVER}
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        await self._patch(path, {"metadata": {"annotations": change}})
        if done:
            lock = HAMI_LOCK if self.system == "hami" else VOLCANO_LOCK
            gone = {"metadata": {"annotations": {lock: None}}}
            await self._patch(f"/api/v1/nodes/{self.node}", gone)
        return given

    async def _pending(self) -> dict[str, Any]:
        node = await self._get(f"/api/v1/nodes/{self.node}")
        owner = node["metadata"]["annotations"].get(HAMI_LOCK, "").split(",")[1:]
        if owner:
            path = f"/api/v1/namespaces/{owner[0]}/pods/{owner[1]}"
            named: dict[str, Any] = await self._get(path)
            return named
        for pod in await self._pods():
            notes = _notes(pod)
            known = "hami.io/bind-time" in notes and notes.get("hami.io/vgpu-node") == self.node
            if known and notes.get("hami.io/bind-phase") == "allocating":
                return pod
        raise AssertionError(f"no binding pod found on node {self.node}")

    async def _oldest(self, count: int) -> dict[str, Any]:
        found = [
            pod
            for pod in (await self._get("/api/v1/pods"))["items"]
            if _notes(pod).get("volcano.sh/vgpu-node") == self.node
            and _notes(pod).get("volcano.sh/devices-to-allocate", "").count("GPU-") == count
        ]
        assert found, f"no pod of node {self.node} has {count} devices"
        return min(found, key=lambda pod: int(_notes(pod)["volcano.sh/vgpu-time"]))

    async def _pods(self) -> list[dict[str, Any]]:
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}"
        items: list[dict[str, Any]] = (await self._get(path))["items"]
        return items

    async def _get(self, path: str) -> Any:
        return await asyncio.to_thread(self._api.request, "GET", path)

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        await asyncio.to_thread(self._api.request, "PATCH", path, body, merge=True)


def _notes(pod: dict[str, Any]) -> dict[str, str]:
    notes: dict[str, str] = pod["metadata"].get("annotations") or {}
    return notes
