"""Publishes the devices of the ledger as ResourceSlices, one pool for each node.

Kubernetes' own parts read them; nothing here depends on it. A kubelet deletes those of its node
when it starts, or when it misses the node's plugin: so they are watched, and made again.
Invariants: all slices of a pool have one generation, and a change of any of them is a new one; a
slice of ours that no device stands behind is deleted."""

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
    DeviceUncordoned,
    NodeGone,
    NodeObserved,
    NodeReported,
)
from apportion_schemas.decoding import from_outside

GATHER_S: Final = 0.2
"""How long news are gathered before they are published."""
PAUSE_S: Final = 2.0
DIGEST: Final = "apportion.dev/digest"
"""Annotation: what the pool was made of. The API server adds to what is in a slice."""
_NEWS = (
    DeviceCordoned, DeviceCordonLifted, DeviceHealthChanged, DeviceUncordoned, NodeGone,
    NodeObserved, NodeReported,
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


def _read(raw: bytes) -> tuple[str, _Slice, int]:
    found = _decode(raw)
    return found.metadata.name, found, 0  # of when it is does not matter


class Slices:
    """Keeps the pools of all nodes as the ledger has their devices."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._marked: dict[str, None] = {}
        self._news = asyncio.Event()
        self._pools: defaultdict[str, dict[str, _Slice]] = defaultdict(dict)
        published = Kind({}, _read, self._changed, expected=tuple)
        selector = f"spec.driver={DRIVER}"
        self._watch = Watch(api, SLICES, published, clock=clock, selector=selector)

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        if change.refused:
            return
        if isinstance(change.data, ConfigurationChanged):
            self._mark(*self._state.nodes)
        elif isinstance(change.data, _NEWS) and change.node is not None:
            self._mark(change.node.name)

    def not_ready(self) -> list[str]:
        """Why it is not known what is published."""
        return [self._watch.problem] if self._watch.problem else []

    async def require(self) -> None:
        """See `require_gates`."""
        sample = _document("apportion-asks-for-feature-gates", _sample()[-1], "", 0)
        gates = {
            "spec.devices.allowMultipleAllocations": "DRAConsumableCapacity",
            "spec.devices.consumesCounters": "DRAPartitionableDevices",
        }
        await require_gates(self._api, sample, gates)

    async def run(self, reader: Reader[Change]) -> None:
        """Publish the devices of all nodes, and whatever changes, until cancelled."""
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
                        _log.warning(
                            "devices of %s are not published: %s; trying again", node, error
                        )
                        # Others go before what may be refused again.
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
        """Bring the pool of a node up to date, if it is not."""
        wanted, found = self._wanted(node), self._pools.get(node, {})
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

    def _wanted(self, node: str) -> list[Json]:
        """The pool of the node, empty where it is no node of Kubernetes."""
        state = self._state.nodes.get(node)
        if state is None or not state.present or state.observed is None:
            return []
        return pool(node, state.devices, self._state.configuration.nvidia.known_mig_geometries)

    async def _write(self, node: str, method: str, path: str, body: Json | None) -> None:
        """Another binder, or the kubelet, may have been there first: then it is looked at anew."""
        content = _encode(body) if body is not None else None
        answer = await self._api.request(method, path, body=content)
        if answer.ok:
            return
        if answer.status not in _CONFLICTS:
            raise answer.refusal()
        self._mark(node)


def slice_name(node: str, number: int) -> str:
    """What the slice of a node is called: a node's own name may fill a name."""
    return f"apportion-{hashlib.sha256(node.encode()).hexdigest()[:16]}-{number}"


def _document(name: str, spec: Json, digest: str, generation: int) -> Json:
    return {
        "apiVersion": API.removeprefix("/apis/"),
        "kind": "ResourceSlice",
        "metadata": {"name": name, "annotations": {DIGEST: digest}},
        "spec": spec | {"pool": spec["pool"] | {"generation": generation}},
    }


def _sample() -> list[Json]:
    """Slices with a field of each feature gate."""
    shared = Device(id="sample-0", index=0, family=FAMILY, model="A100-40GB",
                    memory_mib=1, physical_memory_mib=1)  # fmt: skip
    cut = msgspec.structs.replace(shared, id="sample-1", index=1, mode="mig")
    devices = [
        DeviceState(each, memory_free_mib=1, cores_free=1, slots_free=1, template_cpu_free=0)
        for each in (shared, cut)
    ]
    return pool("sample", devices)
