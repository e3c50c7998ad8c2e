"""Simulate a kubelet without containers: its sockets, its records and the order of its calls.

The simulation follows the device manager of Kubernetes 1.37 (`pkg/kubelet/cm/devicemanager`).
Invariant: no two live pods have the same device slot."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import serve
from apportion.agent.kubelet.holders import CHECKPOINT
from apportion.core.dra.names import DRIVER
from apportion.runtime.files.atomic import write_whole
from tests.support.polling import until

PRE_START_S = 30.0
"""The timeout after which a kubelet retries the start of a container."""
OF_ITS_OWN = ("grpc.use_local_subchannel_pool", 1)
"""A gRPC option that gives each channel its own connection, as in a Go kubelet.

Without it, channels to one address share a connection, so the kubelet would watch a restarted
plugin over the connection of the killed one."""


class Refused(Exception):
    """Raised if the device plugin refused a call. The message is the plugin's."""


@dataclass
class Endpoint:
    """A registered device plugin and the devices that it reports."""

    channel: grpc.aio.Channel
    starts: bool  # The plugin is called before a container starts.
    devices: list[str] = field(default_factory=list)
    watching: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class Entry:
    """The devices of one resource in one container, as recorded in the kubelet's checkpoint."""

    pod: str
    namespace: str
    name: str
    container: str
    resource: str
    ids: tuple[str, ...]
    init: bool = False
    answer: bytes = b""


class FakeKubelet:
    """The simulated kubelet of one node, with its own folder. `async with` starts the kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cdi = folder / "cdi"
        self._plugins = folder / "device-plugins"
        self._resources = folder / "pod-resources"
        for each in (self._plugins, self._resources):
            each.mkdir(parents=True, exist_ok=True)
        self._servers: list[grpc.aio.Server] = []
        self._endpoints: dict[str, Endpoint] = {}
        self._entries: list[Entry] = []
        self.registrations = 0
        self.heard = True  # From the API server; the kubelet lists its pods only then.
        self.took_s: dict[calls.Call, list[float]] = {}  # How long each answer took.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start as a kubelet does: delete every socket in its folder, and serve its own sockets."""
        for socket in (*self._plugins.glob("*.sock"), *self._resources.glob("*.sock")):
            socket.unlink()
        await self._serve(self._plugins / "kubelet.sock", {calls.REGISTER: self._register})
        await self._serve(self._resources / "kubelet.sock", {calls.POD_RESOURCES: self._list})

    async def stop(self) -> None:
        """Stop as on SIGTERM. The containers keep their devices."""
        for endpoint in self._endpoints.values():
            if endpoint.watching is not None:
                endpoint.watching.cancel()
            await endpoint.channel.close()
        self._endpoints.clear()
        for server in self._servers:
            await server.stop(grace=None)
        self._servers.clear()

    @property
    def amounts(self) -> dict[str, int]:
        """Return how many healthy devices each resource has, as in the node's status."""
        return {name: len(each.devices) for name, each in self._endpoints.items()}

    async def offered(self, resource: str, count: int) -> None:
        """Wait until the plugins report `count` devices of the resource."""

        async def there() -> bool:
            found = self._endpoints.get(resource)
            return found is not None and len(found.devices) == count

        await until(there, f"{count} of {resource}")

    async def admit(
        self, pod: str, name: str, resource: str, containers: dict[str, int], *, init: str = ""
    ) -> dict[str, Any]:
        """Allocate devices to a pod's containers, in order. Return the `Allocate` answer for each.

        `init` names the init container, whose devices the next container reuses. Raises Refused if
        the plugin refuses or has too few devices. A real kubelet then fails the pod for good."""
        answers = {}
        lent: tuple[str, ...] = ()
        for container, count in containers.items():
            taken = {each for entry in self._entries for each in entry.ids if entry.pod != pod}
            mine = {each for entry in self._entries for each in entry.ids if entry.pod == pod}
            free = [each for each in self._endpoints[resource].devices if each not in taken]
            fresh = [each for each in free if each not in mine]
            # From the far end, so that slot numbers carry no meaning.
            ids = tuple(sorted((*lent, *reversed(fresh))[:count]))
            if len(ids) < count:
                raise Refused(f"{len(ids)} of {count} healthy devices of {resource}")
            lent = ids if container == init else ()
            request = pb.AllocateRequest(containers=[pb.Slots(slots=ids)])
            answer = await self._call(resource, calls.ALLOCATE, request)
            answers[container] = answer.containers[0]
            said = answer.containers[0].SerializeToString()
            entry = Entry(pod, "default", name, container, resource, ids, container == init, said)
            self._entries.append(entry)
            self._write_checkpoint()
        return answers

    async def begin(self, pod: str, container: str) -> dict[str, str]:
        """Start a container and return its environment.

        Raises Refused if the plugin refuses the start."""
        entry = next(e for e in self._entries if (e.pod, e.container) == (pod, container))
        if self._endpoints[entry.resource].starts:
            await self._call(entry.resource, calls.PRE_START, pb.PreStartRequest(slots=entry.ids))
        answer = pb.Allocated.FromString(entry.answer)
        return environment(self.edits(entry.ids)) if answer.cdi_devices else dict(answer.env)

    def edits(self, ids: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the `containerEdits` for the devices with these ids, as a runtime finds them in
        CDI files."""
        files = []
        for path in sorted(self.cdi.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # of an ended pod, removed right now
                files.append(json.loads(path.read_bytes()))
        named = [each for file in files for each in file["devices"] if each["name"] in ids]
        assert sorted(each["name"] for each in named) == sorted(ids), "one file for each device"
        return [each["containerEdits"] for each in named]

    def ids(self, pod: str, container: str) -> tuple[str, ...]:
        """Return the ids of the device slots that a container has."""
        return next(e.ids for e in self._entries if (e.pod, e.container) == (pod, container))

    async def plugin(self) -> Any:
        """Wait for the ResourceClaim plugin's socket. Return the plugin's registration data."""
        path = self.folder / "plugins_registry" / f"{DRIVER}-reg.sock"

        async def registered() -> Any:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                try:
                    info = await calls.PLUGIN_INFO.on(channel)(pb.Empty(), timeout=PRE_START_S)
                except grpc.aio.AioRpcError:  # a dead plugin's socket, or none yet
                    return None
                said = pb.PluginRegistered(registered=True)
                await calls.PLUGIN_REGISTERED.on(channel)(said, timeout=PRE_START_S)
                return info

        return await until(registered, "a DRA plugin", interval_s=0.1)

    async def prepare(self, *claims: tuple[str, str]) -> dict[str, Any]:
        """Ask the plugin to prepare ResourceClaims, given as (uid, namespace).

        Return the plugin's answers by uid."""
        answer = await self._claims(calls.PREPARE_CLAIMS, claims)
        return dict(answer.claims)

    async def unprepare(self, *claims: tuple[str, str]) -> dict[str, Any]:
        """Ask the plugin to unprepare ResourceClaims, given as (uid, namespace).

        Return the plugin's answers by uid."""
        answer = await self._claims(calls.UNPREPARE_CLAIMS, claims)
        return dict(answer.claims)

    async def healths(self, wanted: dict[str, int]) -> dict[str, str]:
        """Wait until the devices have the health in `wanted`, by name: 1 is healthy, 2 is
        unhealthy.

        Return the health messages of the devices, by name."""
        endpoint = (await self.plugin()).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
            async for answer in calls.WATCH_HEALTH.on(channel)(pb.Empty(), timeout=PRE_START_S):
                said = {each.device.device_name: each for each in answer.devices}
                if {name: each.health for name, each in said.items()} == wanted:
                    return {name: each.message for name, each in said.items()}
        raise Refused("the plugin says no more of its devices")

    async def _claims(self, call: calls.Call, claims: tuple[tuple[str, str], ...]) -> Any:
        asked = [pb.Claim(uid=uid, namespace=of, name=f"of-{uid}") for uid, of in claims]
        endpoint = (await self.plugin()).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
            return await call.on(channel)(pb.Claims(claims=asked), timeout=PRE_START_S)

    def end(self, pod: str) -> None:
        """End the pod and free its devices. The checkpoint still lists them until the next
        allocation."""
        self._entries = [entry for entry in self._entries if entry.pod != pod]

    def forget(self, pod: str) -> None:
        """Forget the pod's devices but keep its containers, as after the loss of the checkpoint."""
        self._entries = [
            replace(entry, ids=()) if entry.pod == pod else entry for entry in self._entries
        ]
        self._write_checkpoint()

    async def _call(self, resource: str, call: calls.Call, request: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return await call.on(self._endpoints[resource].channel)(request, timeout=PRE_START_S)
        except grpc.aio.AioRpcError as error:
            raise Refused(error.details()) from None
        finally:
            self.took_s.setdefault(call, []).append(time.perf_counter() - began_s)

    async def _serve(self, path: Path, answers: dict[calls.Call, Any]) -> None:
        server = grpc.aio.server(options=calls.OPTIONS)
        serve(server, answers)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    async def _register(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        assert request.version == "v1beta1"
        before = self._endpoints.pop(request.resource_name, None)
        if before is not None and before.watching is not None:
            before.watching.cancel()
        channel = grpc.aio.insecure_channel(
            f"unix:{self._plugins / request.endpoint}", options=[*calls.OPTIONS, OF_ITS_OWN]
        )
        starts = request.options.pre_start_required
        endpoint = self._endpoints[request.resource_name] = Endpoint(channel, starts)
        endpoint.watching = asyncio.create_task(self._watch(endpoint))
        self.registrations += 1
        return pb.Empty()

    async def _watch(self, endpoint: Endpoint) -> None:
        try:
            async for answer in calls.LIST_AND_WATCH.on(endpoint.channel)(pb.Empty()):
                endpoint.devices = [each.id for each in answer.devices if each.health == "Healthy"]
                self._write_checkpoint()
        except grpc.aio.AioRpcError:
            endpoint.devices = []

    async def _list(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        pods: dict[tuple[str, str], Any] = {}
        for entry in self._entries if self.heard else ():
            if entry.init:
                continue
            key = (entry.namespace, entry.name)
            pod = pods.setdefault(key, pb.PodResources(namespace=key[0], name=key[1]))
            devices = [pb.ContainerDevices(resource=entry.resource, ids=[i]) for i in entry.ids]
            pod.containers.append(pb.ContainerResources(name=entry.container, devices=devices))
        return pb.PodResourcesResponse(pods=pods.values())

    def _write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": entry.pod,
                "ContainerName": entry.container,
                "ResourceName": entry.resource,
                "DeviceIDs": {"-1": list(entry.ids)},
                "AllocResp": base64.b64encode(entry.answer).decode(),
            }
            for entry in self._entries
            if entry.ids
        ]
        data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        write_whole(self._plugins / CHECKPOINT, json.dumps(data).encode())


def environment(edits: list[dict[str, Any]]) -> dict[str, str]:
    """Return the environment variables that the edits set. If several set the same variable, the
    last wins."""
    return dict(line.split("=", 1) for each in edits for line in each.get("env", ()))
