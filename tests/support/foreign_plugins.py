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
from tests.support.vendor_nodes import VENDORS

HAMI_LOCK, VOLCANO_LOCK = "hami.io/mutex.lock", "hamivgpu"
MIB = 15_360
"""The memory of each GPU."""
WORDS = {
    "amd": "amd", "ascend": "Ascend310P", "biren": "Biren", "cambricon": "cambricon-mlu",
    "hygon": "dcu", "kunlun-vxpu": "xpu", "metax-sgpu": "metax-sgpu", "vastai": "Vastai",
    **{f"iluvatar-{chip.lower()}": chip for chip in ("BI-V100", "BI-V150", "MR-V50", "MR-V100")},
}  # fmt: skip
"""By vendor: what is in the name of the annotation from which its plugin takes devices."""
NEVER = str(2**64 - 1)
"""Volcano's plugin writes this time on a pod that has its devices, so the pod is the youngest."""


class ForeignPlugin:
    """The device plugin of HAMi or Volcano on one node, with the node's kubelet.

    With `vendor`, it is the plugin of that vendor's devices for HAMi. One that takes its devices
    from no annotation only registers them.

    `handed` has, for each container that the kubelet started, the devices that the plugin gave it
    and those that its pod's annotations name."""

    def __init__(
        self, api: KubeApi, node: str, system: str, cards: int = 0, *, seed: int = 0,
        vendor: str = "",
    ) -> None:  # fmt: skip
        self._api = api
        self.node = node
        self.system, self.vendor = system, vendor
        self._random = Random(seed)
        self._started: set[str] = set()
        self.handed: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
        if vendor:
            facts, limits, _ = VENDORS[vendor]
            self._notes, self._offered = dict(facts.annotations), facts.allocatable
            self._count = next(iter(limits[0]))
            word = WORDS.get(vendor, "")
            self._key = f"hami.io/{word}-devices-to-allocate" if word else ""
            self._lock = "cambricon.com/dsmlu.lock" if vendor == "cambricon" else HAMI_LOCK
            return
        ids = [f"GPU-{node}-{at}" for at in range(cards)]
        if system == "hami":
            entries = [
                {"id": card, "index": at, "count": 10, "devmem": MIB, "devcore": 100,
                 "type": "NVIDIA-Tesla T4", "mode": "hami-core", "health": True}
                for at, card in enumerate(ids)
            ]  # fmt: skip
            self._notes = {
                "hami.io/node-nvidia-register": json.dumps(entries),
                "hami.io/node-handshake": "Reported_2026-11-29 10:00:00",
            }
            self._count, self._lock = "nvidia.com/gpu", HAMI_LOCK
            self._offered = {self._count: 10 * cards}
            self._key = "hami.io/vgpu-devices-to-allocate"
        else:
            rest = f"10,{MIB},NVIDIA-Tesla T4,true,hami-core"
            text = "".join(f"{card},{rest}:" for card in ids)
            self._notes = {"volcano.sh/node-vgpu-register": text}
            self._count, self._lock = "volcano.sh/vgpu-number", VOLCANO_LOCK
            self._offered = {
                self._count: 10 * cards,
                "volcano.sh/vgpu-memory": MIB * cards,
                "volcano.sh/vgpu-cores": 100 * cards,
            }
            self._key = "volcano.sh/devices-to-allocate"

    async def register(self) -> None:
        """Register the devices, as the plugin does every 30 s, and offer them to the kubelet."""
        offered = {name: str(amount) for name, amount in self._offered.items()}
        amounts = {"capacity": offered, "allocatable": offered}
        await self._patch(f"/api/v1/nodes/{self.node}", {"metadata": {"annotations": self._notes}})
        await self._patch(f"/api/v1/nodes/{self.node}/status", {"status": amounts})

    async def run(self) -> None:
        """Start the pods of the node, in a drawn order, until cancelled."""
        while True:
            for pod in await until(self._new, "pods to start", timeout_s=3600, interval_s=0.2):
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
        for container in pod["spec"]["containers"]:
            count = int(container["resources"].get("limits", {}).get(self._count, 0))
            if count and self._key:
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
        segments = notes[self._key].split(";")
        at = next(at for at, segment in enumerate(segments) if "," in segment)
        given = [part.split(",")[0] for part in segments[at].split(":") if "," in part]
        assert len(given) == count, f"{pod['metadata']['name']}: {given}, but {count} are wanted"
        segments[at] = ""
        left = ";".join(segments)
        change = {self._key: left}
        done = not any("," in segment for segment in segments)
        if done and self.system == "hami":
            change["hami.io/bind-phase"] = "success"
        elif done:
            change |= {"volcano.sh/bind-phase": "success", "volcano.sh/vgpu-time": NEVER}
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        await self._patch(path, {"metadata": {"annotations": change}})
        if done:
            gone = {"metadata": {"annotations": {self._lock: None}}}
            await self._patch(f"/api/v1/nodes/{self.node}", gone)
        return given

    async def _pending(self) -> dict[str, Any]:
        node = await self._get(f"/api/v1/nodes/{self.node}")
        owner = node["metadata"]["annotations"].get(self._lock, "").split(",")[1:]
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
