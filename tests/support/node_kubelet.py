"""The kubelet of one node as the API server sees it. It starts and ends the node's bound pods.

The kubelet gets each container's devices from the registered device plugin: our agent, or a double
of another system's plugin. Invariant: the kubelet never creates a container twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from apportion.core.workloads.dialects.amounts import quantity
from tests.support.fake_kubelet import FakeKubelet, Refused
from tests.support.kube_api import KubeApi
from tests.support.polling import until

VISIBLE, LIMIT = "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_"
OF_PEERS = ("hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new")
"""The annotations in which the schedulers of HAMi and Volcano write a pod's devices."""
FOREVER_S = 36_000.0
LOOK_S = 0.2
LOOK_AT_NODE = 10
"""The number of looks after which the node's status is compared."""
Given = list[tuple[str, str]]
"""Each device of a container with its memory limit, or "" if the plugin sets no limit."""


class NodeKubelet:
    """The kubelet of one node, in an `async with` block. It starts pods in random order.

    `handed` maps each container to the devices that it got, and the devices in its pod's
    annotations. `refused` has the pods that a plugin refused, by name. A real kubelet fails such a
    pod for good."""

    def __init__(self, api: KubeApi, node: str, folder: Path, *, seed: int = 0) -> None:
        self._api = api
        self.node = node
        self.fake = FakeKubelet(folder)
        self._random = Random(f"{seed} {node}")
        self._started: set[str] = set()
        self._offered: dict[str, int] = {}
        self._looks = 0
        self._said: dict[str, str] = {}
        self.made: Counter[tuple[str, str]] = Counter()
        self.handed: dict[tuple[str, str], tuple[Given, Given]] = {}
        self.refused: dict[str, str] = {}
        self._running: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        await self.fake.start()
        looking = until(self._look, "the end", timeout_s=FOREVER_S, interval_s=LOOK_S)
        self._running = asyncio.create_task(looking)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._running is not None
        self._running.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running  # and raise what ended it
        finally:
            await self.fake.stop()

    def check(self) -> None:
        """Raise the error with which this kubelet ended, if it has ended."""
        if self._running is not None and self._running.done():
            self._running.result()

    def offer(self, amounts: dict[str, int]) -> None:
        """Report these amounts in the node's status, for resources that no plugin registers.

        A plugin would have to register each unit as a separate device."""
        self._offered = amounts

    async def _look(self) -> bool:
        """Publish the plugins' devices, end deleted pods, and start new pods.

        Return False, so that `until` calls this method again."""
        await self._publish()
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}"
        pods = {pod["metadata"]["uid"]: pod for pod in (await self._get(path))["items"]}
        for uid in self._started - pods.keys():
            self.fake.end(uid)
        self._started &= pods.keys()
        for uid, pod in self._random.sample(sorted(pods.items()), len(pods)):
            if pod["metadata"].get("deletionTimestamp"):
                self.fake.end(uid)
                await asyncio.to_thread(self._api.delete, _path(pod))
            elif uid not in self._started:
                self._started.add(uid)
                await self._start(pod)
        return False

    async def _publish(self) -> None:
        now = {name: str(count) for name, count in (self._offered | self.fake.amounts).items()}
        self._looks += 1
        if now == self._said and self._looks % LOOK_AT_NODE:
            return
        node = await self._get(f"/api/v1/nodes/{self.node}")
        said = node["status"].get("allocatable", {})
        if any(said.get(name) != count for name, count in now.items()):
            status = {"status": {"capacity": now, "allocatable": now}}
            await self._patch(f"/api/v1/nodes/{self.node}/status", status)
        self._said = now

    async def _start(self, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        got: dict[str, dict[str, str]] = {}
        try:
            for container in pod["spec"]["containers"]:
                limits = container["resources"].get("limits", {})
                for resource in self.fake.amounts.keys() & limits.keys():
                    asked = {container["name"]: int(quantity(limits[resource], resource))}
                    await self.fake.admit(uid, name, resource, asked)
                    got[container["name"]] = {}
        except Refused as error:
            self.refused[name] = str(error)
            self.fake.end(uid)
            why = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": str(error)}
            await self._patch(f"{_path(pod)}/status", {"status": why})
            return
        for container in got:
            env = await self._begun(uid, container)
            self.made[uid, container] += 1
            self.handed[name, container] = _compared(pod, container, env)
        await self._patch(f"{_path(pod)}/status", {"status": {"phase": "Running"}})

    async def _begun(self, uid: str, container: str) -> dict[str, str]:
        """Start the container. Like a kubelet, try again while the plugin refuses."""
        env: dict[str, str] | None = None
        refusal = ""

        async def begun() -> bool:
            nonlocal env, refusal
            try:
                env = await self.fake.begin(uid, container)
            except Refused as error:
                refusal = str(error)
                return False
            return True

        try:
            await until(begun, f"container {container} of {uid} to start", interval_s=LOOK_S)
        except AssertionError as late:
            raise AssertionError(f"{late}; the plugin says: {refusal}") from None
        assert env is not None
        return env

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        path = f"{path}?fieldManager=kubelet"
        await asyncio.to_thread(self._api.request, "PATCH", path, body, merge=True)

    async def _get(self, path: str) -> Any:
        return await asyncio.to_thread(self._api.request, "GET", path)


def _path(pod: dict[str, Any]) -> str:
    about = pod["metadata"]
    return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"


def _compared(pod: dict[str, Any], container: str, env: dict[str, str]) -> tuple[Given, Given]:
    """Return the devices and limits that the container got, and those in its pod's annotations."""
    devices = [each for each in env.get(VISIBLE, "").split(",") if each]
    given = [(device, env.get(f"{LIMIT}{at}", "")) for at, device in enumerate(devices)]
    limited = any(limit for _, limit in given)
    wanted = [(device, limit if limited else "") for device, limit in _wanted(pod, container)]
    return sorted(given), sorted(wanted)  # the order of devices has no meaning


def _wanted(pod: dict[str, Any], container: str) -> Given:
    notes = pod["metadata"]["annotations"]
    if "apportion.dev/shares" in notes:
        own = json.loads(notes["apportion.dev/shares"])
        return [(s["device"], f"{s['memory_mib']}m") for s in own if s["container"] == container]
    names = [each["name"] for each in pod["spec"]["containers"]]
    text = next(notes[key] for key in OF_PEERS if key in notes)
    segment = text.split(";")[names.index(container)]
    parts = [part.split(",") for part in segment.split(":") if part]
    return [(part[0], f"{part[2]}m") for part in parts]
