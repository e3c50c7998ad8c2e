"""Find which pod has a slot, from PodResources and the kubelet's checkpoint.

PodResources (v1) lacks init containers and uids. The checkpoint lacks names and contains ended
pods. A restarted kubelet lists no pod until the API server has sent its pods. So a pod has ended
only if the kubelet process that listed the pod no longer lists it. Invariants: a slot has exactly
one pod. If checkpoint and PodResources disagree, the search fails. No pod counts as ended while one
of its containers may run."""

import asyncio
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import OPTIONS, POD_RESOURCES
from apportion.agent.kubelet.port import HANDED_TO, Handed, Holder, NotPrepared
from apportion.agent.usage.owners import Owner, Owners
from apportion.core.grants import Edits, Mount
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import Name

CHECKPOINT: Final = "kubelet_internal_checkpoint"
CLAIMS: Final = "claims.json"  # the book of prepared claims, in the folder that survives a reboot
CHECKPOINT_BYTES_MAX: Final = 64 << 20  # a node with a few hundred pods has a few hundred kilobytes
_TIMEOUT_S = 2.0
# A file written more recently may be replaced without any difference in `_File`.
_SETTLED_NS: Final = 1_000_000_000
_File = tuple[int, int, int]  # inode, size and time of the last change
_OURS: Final = b"apportion.dev/"  # in every answer of our plugins to `Allocate`
_Ids = list[str] | dict[str, list[str]] | None


class _Entry(Struct, rename="pascal"):
    """The devices of one resource that one container has, as in the kubelet's checkpoint."""

    pod_uid: Name = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    # A list up to Kubernetes 1.19, then by NUMA node.
    device_ids: _Ids = msgspec.field(name="DeviceIDs", default=None)
    # Our encoded answer to `Allocate`: what the container gets.
    answer: bytes | None = msgspec.field(name="AllocResp", default=None)

    @property
    def ids(self) -> frozenset[str]:
        """Return the entry's device ids, of all NUMA nodes together."""
        found = self.device_ids or []
        lists = found.values() if isinstance(found, dict) else [found]
        return frozenset(each for some in lists for each in some or ())


class _Data(Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None
    registered_devices: dict[str, msgspec.Raw] | None = None


class _Checkpoint(Struct, rename="pascal"):
    data: _Data


_decode = from_outside(msgspec.json.Decoder(_Checkpoint).decode)


class Holders:
    """Finds the pod of a slot or a process in the records of one kubelet.

    `prepared` maps the uid of each prepared ResourceClaim to its pod's uid, because the checkpoint
    lacks pods that only have claims. The resources `amounts` (memory and cores) have no slots."""

    def __init__(
        self,
        folder: Path,
        pod_resources: Path,
        prepared: BootBook[str] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._checkpoint = folder / CHECKPOINT
        self._socket = pod_resources
        self._prepared = prepared
        self._owners = Owners(proc)
        self._kubelet = 0
        self._ran: set[str] = set()
        self._over: set[str] = set()
        self.amounts: frozenset[str] = frozenset()
        self._listed: dict[tuple[str, str], dict[str, set[str]]] = {}
        self._handed: set[tuple[str, str]] = set()
        self._seen: tuple[_File, _Data] | None = None

    async def find(self, resource: str, slots: frozenset[str]) -> Holder:
        """Return the container that has exactly these slots. Raises NotPrepared if uncertain."""
        entries = [
            entry
            for entry in await asyncio.to_thread(self._entries)
            if entry.resource_name == resource and entry.ids == slots
        ]
        named = ", ".join(sorted(slots))
        pods = {entry.pod_uid for entry in entries}
        if len(pods) != 1:
            said = f"{len(pods)} pods have" if pods else "no pod has"
            raise NotPrepared(
                f"in the kubelet's checkpoint, {said} exactly these slots of {resource}: {named}"
            )
        namespace, name = await self._name(resource, slots)
        if name:
            self._ran |= pods
        containers = tuple(sorted({entry.container_name for entry in entries}))
        handed = tuple(_handed(entry.answer or b"") for entry in entries)
        named_slots = tuple(sorted(slots))
        return Holder(pods.pop(), namespace, name, containers, resource, named_slots, handed)

    async def foreign(self, resource: str, slots: frozenset[str]) -> bool:
        """Return True if another vendor's plugin gave out these devices. Raises NotPrepared."""
        answers = [
            entry.answer or b""
            for entry in await asyncio.to_thread(self._entries)
            if entry.resource_name == resource and entry.ids == slots
        ]
        return bool(answers) and not any(_OURS in answer for answer in answers)

    async def of_others(self, resources: Collection[str]) -> set[str]:
        """Return the uids of pods whose devices all come from other vendors' plugins.

        Raises NotPrepared."""
        ours: dict[str, bool] = {}
        for entry in await asyncio.to_thread(self._entries):
            if entry.resource_name in resources and entry.resource_name not in self.amounts:
                mine = _OURS in (entry.answer or b"")
                ours[entry.pod_uid] = ours.get(entry.pod_uid, False) or mine
        return {pod for pod, mine in ours.items() if not mine}

    async def allocated(self, resource: str) -> dict[str, set[str]]:
        """Return names of containers with slots of `resource`, by pod uid. Raises NotPrepared."""
        found: dict[str, set[str]] = {}
        for entry in await asyncio.to_thread(self._entries):
            if entry.resource_name == resource:
                found.setdefault(entry.pod_uid, set()).add(entry.container_name)
        return found

    async def pods(self) -> set[str]:
        """Return the uids of all pods that may use devices here. Raises NotPrepared."""
        known = {entry.pod_uid for entry in await asyncio.to_thread(self._entries)}
        by_claim = self._prepared.entries.values() if self._prepared is not None else ()
        return (known - self._over).union(by_claim)

    def owner(self, pid: int) -> Owner | None:
        """Return the pod and container of a process, or None if the process has ended."""
        return self._owners.of(pid)

    def slots(self) -> set[str]:
        """Return all slots in use, by claims or by containers that may run. Raises NotPrepared."""
        claims = self._prepared.entries if self._prepared is not None else ()
        held = (
            entry.ids
            for entry in self._entries()
            if entry.pod_uid not in self._over and entry.resource_name not in self.amounts
        )
        return {claim_slot(claim) for claim in claims}.union(*held)

    async def look(self) -> None:
        """Update the record of which pods have ended. Raises NotPrepared."""
        kubelet = self._started()
        if kubelet != self._kubelet:
            self._kubelet, self._ran = kubelet, set()
        before = set(self._ran)  # a pod that starts now may be newer than the list
        pods = (await self._list()).pods
        self._listed = {
            (pod.namespace, pod.name): {
                each.name: {devices.resource for devices in each.devices if devices.ids}
                for each in pod.containers
            }
            for pod in pods
        }
        listed = {
            (devices.resource, slot)
            for pod in pods
            for container in pod.containers
            for devices in container.devices
            if devices.resource not in self.amounts
            for slot in devices.ids
        }
        entries = await asyncio.to_thread(self._entries)
        self._handed = {(entry.pod_uid, entry.container_name) for entry in entries}
        if self._started() != kubelet:
            return  # another kubelet answered, which may not know its pods yet
        runs = {
            entry.pod_uid
            for entry in entries
            if entry.resource_name not in self.amounts
            and any((entry.resource_name, slot) in listed for slot in entry.ids)
        }
        self._over = (self._over | before - runs) & {entry.pod_uid for entry in entries}
        self._ran = (self._ran | runs) - self._over

    def bare(self, pod: str, namespace: str, name: str, container: str) -> bool:
        """Return True if the kubelet last reported the container without plugin devices."""
        given = self._listed.get((namespace, name), {}).get(container)
        return given == set() and (pod, container) not in self._handed

    def _started(self) -> int:
        try:
            # A restarted kubelet makes its socket again.
            return self._socket.stat().st_ctime_ns
        except OSError:
            return 0

    def registered(self) -> set[str]:
        """Return the resources for which the kubelet has device plugins. Raises NotPrepared."""
        found = self._read()
        entries = {entry.resource_name for entry in found.pod_device_entries or ()}
        return entries.union(found.registered_devices or ())

    def _entries(self) -> list[_Entry]:
        return self._read().pod_device_entries or []

    def _read(self) -> _Data:
        seen = self._seen
        try:
            with self._checkpoint.open("rb") as file:
                status = os.fstat(file.fileno())
                now = status.st_ino, status.st_size, status.st_mtime_ns
                if seen is not None and seen[0] == now:
                    return seen[1]
                data = file.read(CHECKPOINT_BYTES_MAX + 1)
        except OSError as error:
            raise NotPrepared(f"cannot read the kubelet's checkpoint: {error}") from None
        if len(data) > CHECKPOINT_BYTES_MAX:
            raise NotPrepared(
                f"{self._checkpoint} exceeds {CHECKPOINT_BYTES_MAX >> 20} MiB, so it is not a "
                "kubelet checkpoint"
            )
        try:
            found = _decode(data).data
        except msgspec.DecodeError as error:
            raise NotPrepared(f"unknown checkpoint format in {self._checkpoint}: {error}") from None
        settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        self._seen = (now, found) if settled else None
        return found

    async def _name(self, resource: str, slots: frozenset[str]) -> tuple[str, str]:
        for pod in (await self._list()).pods:
            for container in pod.containers:
                lists = (each.ids for each in container.devices if each.resource == resource)
                if slots <= {each for some in lists for each in some}:
                    return pod.namespace, pod.name
        return "", ""

    async def _list(self) -> Any:
        address = f"unix:{self._socket}"
        try:
            async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
                return await POD_RESOURCES.on(channel)(pb.Empty(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise NotPrepared(
                f"no answer from the kubelet's PodResources at {self._socket}: {error.details()}"
            ) from None


def _handed(answer: bytes) -> Handed:
    try:
        # An unreadable answer was meant for no container.
        said = pb.Allocated.FromString(answer)
    except DecodeError:
        return Handed("", Edits())
    mounts = tuple(
        Mount(each.host_path, each.container_path, read_only=each.read_only) for each in said.mounts
    )
    return Handed(said.annotations.get(HANDED_TO, ""), Edits(dict(said.env), mounts))


def claim_slot(claim: str) -> str:
    """Return the CDI device name of a ResourceClaim from the claim's uid."""
    return f"claim-{claim}"
