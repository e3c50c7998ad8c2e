"""Publishes the ledger's devices as ResourceSlices, in one pool per node.

A kubelet deletes its node's slices when it starts or loses the node's plugin. So the binder watches
the slices and creates them again. Invariants: all slices of a pool have the same generation, and
any change raises it. Slices without devices are deleted."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from apportion.core.devices.shares import DeviceState
from apportion.core.dra.names import DRIVER, FAMILY
from apportion.core.dra.slices import pool
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.kube.examining import API, SLICES, require_gates
from apportion.runtime.kube.watch import Kind, Watch
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion_schemas import (
    ConfigurationChanged,
    Device,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    NodeGone,
    NodeObserved,
    NodeReported,
)
from apportion_schemas.decoding import from_outside

GATHER_S: Final = 0.2  # how long changes are collected before they are published
PAUSE_S: Final = 2.0
# Annotation: the digest of the published pool. The API server adds fields to a slice, so slices are
# not compared directly.
DIGEST: Final = "apportion.dev/digest"
_NEWS = (
    DeviceCordoned, DeviceCordonLifted, DeviceHealthChanged, DeviceUncordoned, NodeGone,
    NodeObserved, NodeReported, DevicesRegistered,
)  # fmt: skip
_CONFLICTS: Final = (404, 409)
_encode = msgspec.json.Encoder(order="sorted").encode
_log = logging.getLogger(__name__)

Json = dict[str, Any]


class _Meta(Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Pool(Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0


class _Spec(Struct, frozen=True):
    driver: str = ""
    pool: _Pool = _Pool()


class _Slice(Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


_decode = from_outside(msgspec.json.Decoder(_Slice).decode)


class Slices:
    """Keeps the ResourceSlices of all nodes up to date."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._marked: dict[str, None] = {}
        self._news = asyncio.Event()
        self._pools: defaultdict[str, dict[str, _Slice]] = defaultdict(dict)

        def read(raw: bytes) -> tuple[str, _Slice, int]:
            found = _decode(raw)
            return found.metadata.name, found, 0  # the version is not used

        published = Kind({}, read, self._changed, expected=tuple)
        selector = f"spec.driver={DRIVER}"
        self._watch = Watch(api, SLICES, published, clock=clock, selector=selector)

    def observe(self, change: Change) -> None:
        """Record a change of the fold. Pass this method to the reader."""
        if change.refused:
            return
        if isinstance(change.data, ConfigurationChanged):
            self._mark(*self._state.nodes)
        elif isinstance(change.data, _NEWS) and change.node is not None:
            self._mark(change.node.name)

    def not_ready(self) -> list[str]:
        """Return why the binder cannot watch the published slices; empty if it can."""
        return [self._watch.problem] if self._watch.problem else []

    async def require(self) -> None:
        """Check the API server's feature gates; see `require_gates`."""
        # One slice with a field of each feature gate.
        shared = Device(id="sample-0", index=0, family=FAMILY, model="A100-40GB",
                        memory_mib=1, physical_memory_mib=1)  # fmt: skip
        cut = msgspec.structs.replace(shared, id="sample-1", index=1, mode="mig")
        devices = [
            DeviceState(each, memory_free_mib=1, cores_free=1, slots_free=1, template_cpu_free=0)
            for each in (shared, cut)
        ]
        name = "apportion-asks-for-feature-gates"
        sample = _document(name, pool("sample", devices)[-1], "", 0)
        gates = {
            "spec.devices.allowMultipleAllocations": "DRAConsumableCapacity",
            "spec.devices.consumesCounters": "DRAPartitionableDevices",
        }
        await require_gates(self._api, sample, gates)

    async def run(self, reader: Reader[Change]) -> None:
        """Publish the devices of all nodes until cancelled."""
        await reader.caught_up()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="watch resourceslices")
            await self._watch.synced()
            self._mark(*self._state.nodes, *self._pools)
            while True:
                await self._news.wait()
                await self._clock.pause(GATHER_S)
                marked, self._marked = self._marked, {}
                self._news.clear()
                for at, node in enumerate(marked):
                    try:
                        await self._renew(node)
                    except (KubeUnavailable, KubeRefused) as error:
                        _log.warning("devices of node %s not published, retrying: %s", node, error)
                        # The failed node goes last, because it may fail again.
                        self._mark(*list(marked)[at + 1 :], node)
                        await self._clock.pause(PAUSE_S)
                        break

    def _changed(self, name: str, before: _Slice | None, now: _Slice | None, _version: int) -> None:
        if before is not None:
            self._pools[before.spec.pool.name].pop(name, None)
            self._mark(before.spec.pool.name)
        if now is not None:
            self._pools[now.spec.pool.name][name] = now
            self._mark(now.spec.pool.name)

    def _mark(self, *nodes: str) -> None:
        self._marked |= dict.fromkeys(nodes)
        self._news.set()

    async def _renew(self, node: str) -> None:
        wanted, found = list[Json](), self._pools.get(node, {})
        state = self._state.nodes.get(node)
        if state is not None and state.present and state.observed is not None:
            geometries = self._state.configuration.nvidia.known_mig_geometries
            wanted = pool(node, state.devices, geometries)
        digest = hashlib.sha256(_encode(wanted)).hexdigest()
        names = [slice_name(node, number) for number in range(len(wanted))]
        generations = {each.spec.pool.generation for each in found.values()}
        reported = {each.metadata.annotations.get(DIGEST) for each in found.values()}
        if set(names) == set(found) and reported <= {digest} and len(generations) <= 1:
            return
        generation = max(generations, default=0) + 1
        for name, spec in zip(names, wanted, strict=True):
            body = _document(name, spec, digest, generation)
            there = found.get(name)
            if there is not None:
                body["metadata"]["resourceVersion"] = there.metadata.resource_version
                await self._write(node, "PUT", f"{SLICES}/{name}", body)
            else:
                await self._write(node, "POST", SLICES, body)
        for name in found.keys() - set(names):
            await self._write(node, "DELETE", f"{SLICES}/{quote(name, safe='')}", None)

    async def _write(self, node: str, method: str, path: str, body: Json | None) -> None:
        content = _encode(body) if body is not None else None
        answer = await self._api.request(method, path, body=content)
        if answer.ok:
            return
        if answer.status not in _CONFLICTS:
            raise answer.refusal()
        # Another binder or the kubelet was faster: check again.
        self._mark(node)


def slice_name(node: str, number: int) -> str:
    """Return a name for one of a node's ResourceSlices, from a hash of the node's name."""
    return f"apportion-{hashlib.sha256(node.encode()).hexdigest()[:16]}-{number}"


def _document(name: str, spec: Json, digest: str, generation: int) -> Json:
    return {
        "apiVersion": API.removeprefix("/apis/"),
        "kind": "ResourceSlice",
        "metadata": {"name": name, "annotations": {DIGEST: digest}},
        "spec": spec | {"pool": spec["pool"] | {"generation": generation}},
    }
