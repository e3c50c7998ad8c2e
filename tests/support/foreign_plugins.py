"""Doubles of HAMi's and Volcano's device plugins, which serve a kubelet on its socket.

Like the real plugins, the doubles guess which pod the kubelet is starting. HAMi's plugin serves the
pod that the node lock names, or else the first pending pod of the node (`GetPendingPod`). Volcano's
plugin serves the oldest pod with as many devices as the kubelet requests. The tests' kubelet starts
pods in a random order. So if a scheduler breaks the plugin's rules, a container gets the devices of
another pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.core.workloads.dialects.dialect import records
from tests.support.kube_api import KubeApi
from tests.support.node_kubelet import LIMIT, VISIBLE, NodeKubelet
from tests.support.old_plugin import OldPlugin
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
"""For each vendor, a part of the name of the annotation from which its plugin reads devices."""
NEVER = str(2**64 - 1)
"""The time that Volcano's plugin writes on a served pod, so that it is never the oldest again."""
STEPS = ("before the pod is found", "before the segment is erased", "before the lock is released")
"""The points of an allocation at which a plugin can be killed."""
WRITERS = {"hami": "nvidia-device-plugin", "volcano": "volcano-vgpu-device-plugin"}
"""The program names that the API server records as the manager of each change."""


class Killed(Exception):
    """Raised during an allocation, at the step at which the plugin dies."""


class ForeignPlugin:
    """The device plugin of HAMi or Volcano on one node.

    With `vendor`, this is HAMi's plugin for that vendor's devices. The plugin of a vendor that is
    not in `WORDS` reads no annotations, and only registers its devices."""

    def __init__(
        self, api: KubeApi, node: str, system: str, cards: int = 0, *, vendor: str = "",
        ids: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._api = api
        self.node = node
        self.system, self.vendor = system, vendor
        self._door: OldPlugin | None = None
        self._dies_at = ""
        self._dead = False
        if vendor:
            facts, limits, _ = VENDORS[vendor]
            self._notes, self._offered = dict(facts.annotations), dict(facts.allocatable)
            self.resource = next(iter(limits[0]))
            self._offered.setdefault(self.resource, 100)
            word = WORDS.get(vendor, "")
            self._key = f"hami.io/{word}-devices-to-allocate" if word else ""
            self._lock = "cambricon.com/dsmlu.lock" if vendor == "cambricon" else HAMI_LOCK
            return
        ids = ids or [f"GPU-{node}-{at}" for at in range(cards)]
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
            self.resource, self._lock = "nvidia.com/gpu", HAMI_LOCK
            self._offered = {self.resource: 10 * len(ids)}
            self._key = "hami.io/vgpu-devices-to-allocate"
        else:
            rest = f"10,{MIB},NVIDIA-Tesla T4,true,hami-core"
            text = "".join(f"{card},{rest}:" for card in ids)
            self._notes = {"volcano.sh/node-vgpu-register": text}
            self.resource, self._lock = "volcano.sh/vgpu-number", VOLCANO_LOCK
            self._offered = {
                self.resource: 10 * len(ids),
                "volcano.sh/vgpu-memory": MIB * len(ids),
                "volcano.sh/vgpu-cores": 100 * len(ids),
            }
            self._key = "volcano.sh/devices-to-allocate"

    @property
    def units(self) -> int:
        """Return how many devices of its resource the plugin offers to the kubelet."""
        return self._offered[self.resource]

    @property
    def registrations(self) -> tuple[str, ...]:
        """Return the keys of the node's annotations in which the plugin registers its devices."""
        return tuple(self._notes)

    async def start(self, kubelet: NodeKubelet) -> None:
        """Register with a simulated kubelet, as `register` does, and wait for its answer."""
        kubelet.offer({name: n for name, n in self._offered.items() if name != self.resource})
        await self.register(kubelet.fake.folder / "device-plugins")
        await kubelet.fake.offered(self.resource, self.units)

    async def register(self, folder: Path) -> None:
        """Register the devices in the node's annotations and with the kubelet, and serve them.

        `folder` has the sockets of device plugins."""
        await self._patch(f"/api/v1/nodes/{self.node}", {"metadata": {"annotations": self._notes}})
        self._dead, self._dies_at = False, ""
        self._door = OldPlugin(self.resource, self.units, self._answer)
        await self._door.register(folder)

    async def stop(self) -> None:
        """Stop serving, as when the plugin's pod is deleted or killed."""
        self._dead = True
        if self._door is not None:
            await self._door.stop()
            self._door = None

    async def die(self, step: str, timeout_s: float) -> bool:
        """Die at this step of the next allocation, or after `timeout_s` without this step.

        Return False after a timeout."""
        self._dies_at = step

        async def dead() -> bool:
            return self._dead

        try:
            await until(dead, "an allocation", timeout_s=timeout_s)
        except AssertionError:
            return False
        finally:
            await self.stop()
        return True

    async def _answer(self, request: Any, context: Any) -> Any:
        try:
            given = [await self._allocate(len(each.slots)) for each in request.containers]
        except (AssertionError, Killed) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        answer = pb.AllocateResponse()
        for devices in given:
            one = answer.containers.add()
            one.env[VISIBLE] = ",".join(device for device, _ in devices)
            for at, (_, memory) in enumerate(() if self.vendor else devices):
                one.env[f"{LIMIT}{at}"] = f"{memory}m"
        return answer

    def _reach(self, step: str) -> None:
        self._dead = self._dead or self._dies_at == step
        if self._dead:
            raise Killed(f"killed {step}")

    async def _allocate(self, count: int) -> list[tuple[str, int]]:
        """Give devices to the pod that the plugin believes the kubelet is starting."""
        if not self._key:
            return []
        self._reach(STEPS[0])
        pod = await (self._pending() if self.system == "hami" else self._oldest(count))
        segments = _notes(pod)[self._key].split(";")
        at = next((at for at, segment in enumerate(segments) if "," in segment), None)
        given = [] if at is None else [(each[0], each[1]) for each in records(segments[at])]
        if at is None or len(given) != count:
            await self._end(pod, "failed")
            name = pod["metadata"]["name"]
            raise AssertionError(f"{name}: {given}, but the kubelet asks for {count}")
        self._reach(STEPS[1])
        segments[at] = ""
        await self._note(pod, {self._key: ";".join(segments)})
        self._reach(STEPS[2])
        if not any("," in segment for segment in segments):
            await self._end(pod, "success")
        return given

    async def _end(self, pod: dict[str, Any], phase: str) -> None:
        """Set the pod's phase, and then release the node's lock."""
        if self.system == "hami":
            await self._note(pod, {"hami.io/bind-phase": phase})
        else:
            await self._note(pod, {"volcano.sh/bind-phase": phase, "volcano.sh/vgpu-time": NEVER})
        gone = {"metadata": {"annotations": {self._lock: None}}}
        await self._patch(f"/api/v1/nodes/{self.node}", gone)

    async def _note(self, pod: dict[str, Any], notes: dict[str, str]) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        await self._patch(path, {"metadata": {"annotations": notes}})

    async def _pending(self) -> dict[str, Any]:
        node = await self._get(f"/api/v1/nodes/{self.node}")
        owner = _notes(node).get(self._lock, "").split(",")[1:]
        if owner:
            path = f"/api/v1/namespaces/{owner[0]}/pods/{owner[1]}"
            named: dict[str, Any] = await self._get(path)
            return named
        of_node = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}"
        pods: list[dict[str, Any]] = (await self._get(of_node))["items"]
        for pod in pods:
            notes = _notes(pod)
            known = "hami.io/bind-time" in notes and notes.get("hami.io/vgpu-node") == self.node
            starting = notes.get("hami.io/bind-phase") in {"allocating", "success"}
            if known and starting and pod["status"]["phase"] == "Pending":
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

    async def _get(self, path: str) -> Any:
        return await asyncio.to_thread(self._api.request, "GET", path)

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        by = f"{path}?fieldManager={WRITERS.get(self.system, 'device-plugin')}"
        await asyncio.to_thread(self._api.request, "PATCH", by, body, merge=True)


def _notes(thing: dict[str, Any]) -> dict[str, str]:
    notes: dict[str, str] = thing["metadata"].get("annotations") or {}
    return notes
