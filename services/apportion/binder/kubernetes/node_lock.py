"""Takes the locks of HAMi's or Volcano's device plugins on a node before a pod is bound there.

A lock tells the plugin which pod the kubelet is starting. The plugin removes the lock once that pod
has its devices (HAMi's `pkg/util/nodelock`). So a node starts one pod with such devices at a time.
Invariant: a pod whose devices need a lock is bound there only while the node's annotation names
this pod. As in HAMi, a lock is taken over if its pod no longer exists, or after some minutes. A
plugin that dies fails the pod that it serves. Then the binder withdraws the pod: it removes the
lock, and annotations that the plugin would still read."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec

from apportion.binder.binding import Failed
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import NodeState, State
from apportion.core.workloads.adoption.claims import ENDED
from apportion.core.workloads.dialects.dialect import Lock
from apportion.core.workloads.dialects.listing import DIALECTS, parts
from apportion.runtime.kube.client import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    KubeApi,
    KubeRefused,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.kube.pods import find_pod
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas import PodGone, PodPlaced
from apportion_schemas.decoding import from_outside

# The pod of a lock that has only a time is in this annotation of ours. It counts only with the same
# time.
OWNER: Final = "apportion.dev/node-lock"
# The label that HAMi's scheduler sets on its pods, with the name of the node.
NODE_LABEL: Final = "hami.io/vgpu-node"
LABEL_MAX: Final = 63
ANOTHER: Final = "another pod"
WAIT_S: Final = 15.0  # for one delivery; then the binder reports why the pod waits
LOOK: Final = BackOff(0.1, 1.0)
PAUSE_S: Final = 2.0
# Annotations of a pod: what its plugin has yet to allocate, and how far it is.
_QUEUE: Final = "devices-to-allocate"
PHASES: Final = ("hami.io/bind-phase", "volcano.sh/bind-phase")
ALLOCATING: Final = "allocating"
_OWNER_PARTS: Final = 3  # time, namespace and pod; older versions of HAMi wrote only the time

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    annotations: dict[str, str] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta


_decode_node = from_outside(msgspec.json.Decoder(_Node).decode)


class NodeLocks:
    """The locks of all nodes on which another system's device plugin allocates the devices."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._due: dict[str, None] = {}  # nodes
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Record that a pod of a node with a lock is gone. Pass this method to the reader."""
        node = change.node
        if isinstance(change.data, PodGone) and node is not None and node.keeps_plugin:
            self._due[node.name] = None
            self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Remove the locks and annotations of pods that end while they have a lock.

        Runs until cancelled. Begins with pods that ended before the binder started."""
        await reader.caught_up()
        self._due = {name: None for name, node in self._state.nodes.items() if node.keeps_plugin}
        while True:
            self._news.clear()
            while self._due:
                name, _ = self._due.popitem()
                try:
                    await self.withdraw(name)
                except KubeUnavailable as error:
                    _log.info("lock of node %s not checked, retrying: %s", name, error)
                    self._due[name] = None
                    await self._clock.pause(PAUSE_S)
                except KubeRefused as error:  # the pod was created again, or it is not permitted
                    _log.info("lock of node %s not checked: %s", name, error)
            await self._news.wait()

    async def withdraw(self, name: str) -> None:
        """If the pod with the node's lock has ended, remove its lock and annotations.

        Raises KubeUnavailable, KubeRefused."""
        node = self._state.nodes.get(name)
        if node is None or node.gone:
            return
        found = await self._read(name)
        for lock in dict.fromkeys(each for one in DIALECTS for each in _locks(one.name, node)):
            _, *owner = _written(found, lock)
            alive = any(pod.full_name == "/".join(owner) for pod in node.pods.values())
            if alive or len(owner) + 1 != _OWNER_PARTS:
                continue
            pod = await find_pod(self._api, *owner)
            elsewhere = pod is not None and pod.spec.node_name not in ("", name)  # of that name
            if pod is not None and not elsewhere and pod.status.phase not in ENDED:
                continue
            if pod is not None and not elsewhere:
                # Volcano's plugin goes by this annotation, even if the pod has failed.
                left = {key: "" for key in pod.notes if key.endswith(_QUEUE)}
                about = {"metadata": {"uid": pod.metadata.uid, "annotations": left}}
                path = f"{pod_path(*owner)}/status"
                await self._api.change("PATCH", path, about, content_type=MERGE_PATCH)
            await self._unlock(name, lock, owner)

    async def take(self, placed: PodPlaced, dialect: str, node: NodeState) -> Failed | None:
        """Take the node's locks for the pod, waiting while other pods have them.

        Return the failure if that times out or is refused. Raises KubeUnavailable."""
        if not node.foreign_plugin:
            return None
        owner, locks = ANOTHER, _locks(dialect, node)
        try:
            async with asyncio.timeout(WAIT_S), self._turns[placed.node]:
                for lock in locks:
                    tries = 0
                    while owner := await self._held(placed, lock):
                        tries += 1
                        await self._clock.pause(LOOK.after(tries))
                # HAMi's scheduler sets this label of the pod. Its plugin reads the annotation, so a
                # node name that is too long for a label is left out.
                if node.foreign_plugin == "hami" and len(placed.node) <= LABEL_MAX:
                    meta = {"uid": placed.pod, "labels": {NODE_LABEL: placed.node}}
                    await self._api.request(
                        "PATCH", f"{pod_path(placed.namespace, placed.name)}/status",
                        body=_encode({"metadata": meta}), content_type=MERGE_PATCH,
                    )  # fmt: skip
        except TimeoutError:
            if len(locks) > 1:  # while it waits for the second, others may have the first
                await self.release(placed, dialect, node)
            why = f"its device plugin starts one pod at a time, now {owner}"
            return Failed(f"waiting for node {placed.node}: {why}", final=False, waits=True)
        except KubeRefused as error:
            fix = "allow the binder to get nodes and to patch nodes/status"
            return Failed(f"lock of node {placed.node} not taken: {error}; {fix}", final=False)
        return None

    async def release(
        self, placed: PodPlaced, dialect: str, node: NodeState, *, served: bool = False
    ) -> None:
        """Remove the pod's locks from the node, because this call has not bound the pod.

        With `served`, an earlier call has bound the pod. Then the locks stay if the plugin has yet
        to serve the pod, because the plugin removes them afterwards."""
        locks = _locks(dialect, node)
        try:
            if not locks:
                return
            pod = await find_pod(self._api, placed.namespace, placed.name) if served else None
            if pod is not None and ALLOCATING in map(pod.notes.get, PHASES):
                return  # the plugin has yet to serve it
            for lock in locks:
                await self._unlock(placed.node, lock, [placed.namespace, placed.name])
        except (KubeUnavailable, KubeRefused) as error:
            # The next try of the pod has it already; another pod takes it over once it has expired.
            _log.info("lock of node %s not released: %s", placed.node, error)

    async def _held(self, placed: PodPlaced, lock: Lock) -> str:
        """Take the lock, or return which pod has it. Raises KubeUnavailable, KubeRefused."""
        found = await self._read(placed.node)
        time, *owner = _written(found, lock)
        if owner == [placed.namespace, placed.name]:
            return ""
        if time and not await self._is_stale(time, owner, lock.expires_s):
            return "/".join(owner) or ANOTHER
        now = self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mine = f"{now},{placed.namespace},{placed.name}"
        notes = {lock.key: mine} if lock.names_pod else {lock.key: now, OWNER: mine}
        taken = await self._write(placed.node, notes, found.resource_version)
        return "" if taken else ANOTHER

    async def _is_stale(self, time: str, owner: list[str], expires_s: int) -> bool:
        try:
            since = datetime.fromisoformat(time)
        except ValueError:
            return True
        if since.tzinfo is None or (self._clock.now() - since).total_seconds() > expires_s:
            return True
        if len(owner) + 1 != _OWNER_PARTS:
            return False
        return await find_pod(self._api, *owner) is None

    async def _unlock(self, node: str, lock: Lock, owner: list[str]) -> None:
        """Remove the lock if it belongs to the pod `owner`."""
        gone = {lock.key: None} | ({} if lock.names_pod else {OWNER: None})
        while _written(found := await self._read(node), lock)[1:] == owner:
            if await self._write(node, gone, found.resource_version):
                return

    async def _read(self, node: str) -> _Meta:
        return _decode_node(await self._api.get(_path(node))).metadata

    async def _write(self, node: str, notes: Mapping[str, str | None], version: str) -> bool:
        """Write annotations if the node is unchanged. Return False if it was changed."""
        document = {"metadata": {"resourceVersion": version, "annotations": notes}}
        answer = await self._api.request(
            # A status request may change annotations, and RBAC permits it.
            "PATCH", f"{_path(node)}/status", body=_encode(document), content_type=MERGE_PATCH,
        )  # fmt: skip
        if answer.passing:
            raise KubeUnavailable(str(answer.refusal()))
        if not answer.ok and answer.status not in (CONFLICT, NOT_FOUND):
            raise answer.refusal()
        return answer.ok


def _locks(dialect: str, node: NodeState) -> tuple[Lock, ...]:
    """Return the locks of the node that a pod of this dialect needs, each once."""
    found = (each.locks.get(node.foreign_plugin) for each in parts(dialect))
    return tuple(dict.fromkeys(lock for lock in found if lock is not None))


def _written(node: _Meta, lock: Lock) -> list[str]:
    """Return the lock's time, followed by its pod's namespace and name if they are recorded."""
    notes = node.annotations or {}
    time, owner = notes.get(lock.key, ""), notes.get(OWNER, "")
    return (owner if time and owner.startswith(f"{time},") else time).split(",")


def _path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"
