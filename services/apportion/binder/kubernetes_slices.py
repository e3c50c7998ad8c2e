"""Publishes the devices of the ledger as ResourceSlices, one pool for each node.

Kubernetes' own parts read them; nothing here depends on it. A kubelet deletes those of its node
when it starts, or when it misses the node's plugin, so they are looked at again now and then.
Invariants: all slices of a pool have one generation, and a change of any of them is a new one; a
slice of ours that no device stands behind is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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
from apportion.runtime.kube.dra import API, SLICES, require_gates
from apportion.runtime.kube.watch import pages
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

LOOK_EVERY_S: Final = 30.0
GATHER_S: Final = 0.2
"""How long news are gathered before they are published."""
PAUSE_S: Final = 2.0
DIGEST: Final = "apportion.dev/digest"
"""Annotation: what the pool was made of. The API server adds to what is in a slice."""
_NEWS = (
    ConfigurationChanged, DeviceCordoned, DeviceCordonLifted, DeviceHealthChanged,
    DeviceUncordoned, NodeGone, NodeObserved, NodeReported,
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


_decode = msgspec.json.Decoder(_Slice).decode


class Slices:
    """Keeps the pools of all nodes as the ledger has their devices."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        if isinstance(change.data, _NEWS) and not change.refused:
            self._news.set()

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
        while True:
            self._news.clear()
            try:
                await self._publish()
            except (KubeUnavailable, KubeRefused, msgspec.MsgspecError) as error:
                _log.warning("devices are not published: %s; trying again", error)
                await self._clock.pause(PAUSE_S)
                continue
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()
                await self._clock.pause(GATHER_S)
            except TimeoutError:
                pass

    async def _publish(self) -> None:
        found: dict[str, dict[str, _Slice]] = {}
        async for items, _ in pages(self._api, SLICES, f"spec.driver={DRIVER}"):
            for item in items:
                one = _decode(bytes(item))
                found.setdefault(one.spec.pool.name, {})[one.metadata.name] = one
        known = self._state.configuration.nvidia.known_mig_geometries
        for node in dict.fromkeys((*self._state.nodes, *found)):
            state = self._state.nodes.get(node)
            there = state is not None and state.present and state.observed is not None
            wanted = pool(node, state.devices, known) if state is not None and there else []
            await self._renew(node, wanted, found.get(node, {}))

    async def _renew(self, node: str, wanted: list[Json], found: dict[str, _Slice]) -> None:
        """Bring the pool of a node up to date, if it is not."""
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
                await self._write("PUT", f"{SLICES}/{name}", body)
            else:
                await self._write("POST", SLICES, body)
        for name in found.keys() - set(names):
            await self._write("DELETE", f"{SLICES}/{quote(name, safe='')}", None)

    async def _write(self, method: str, path: str, body: Json | None) -> None:
        """Another binder, or the kubelet, may have been there first: the next look sees it."""
        content = _encode(body) if body is not None else None
        answer = await self._api.request(method, path, body=content)
        if answer.ok:
            return
        if answer.status not in _CONFLICTS:
            raise answer.refusal()
        self._news.set()


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
