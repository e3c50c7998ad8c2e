"""Publishes GPU memory and cores as extended resources in each node's `status`.

Agents cannot register these amounts with the kubelet, because they are not devices. A kubelet
admits a pod only if its node's status has enough. A pod may request more than it is allocated (see
`core.ledger.allocatable`), so the binder raises the amounts before it binds the pod. Invariant:
before a pod is bound, the status has at least what all pods of the node request, unless the API
server forbids the write. All binders write the same amounts."""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from apportion.core.configuration import manifest_config
from apportion.core.ledger.allocatable import beyond, cards, names_of, of_plugins, shown
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.workloads.dialects import Container, ManifestError
from apportion.core.workloads.dialects.amounts import Role
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.pods.node_needs import node_amounts
from apportion.runtime.kube.client import (
    MERGE_PATCH,
    NOT_FOUND,
    Answer,
    KubeApi,
    KubeRefused,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas import (
    ConfigurationChanged,
    DevicesRegistered,
    NodeObserved,
    NodeReported,
    PodResized,
)
from apportion_schemas.decoding import from_outside

AGAIN_S = 300.0  # a kubelet that lost its checkpoint sets unknown amounts to 0 without a notice
# How long a kubelet may need to see its node's new status. It watches its node and its pods
# separately, and rejects for good a pod that does not fit the node that it knows.
SEEN_S = 1.0
BACK_OFF = BackOff(0.2, 5.0)
_FORBIDDEN = 403

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resources: _Resources = _Resources()
    restart_policy: str = ""

    def read(self, at: int, names: Collection[str], *, init: bool) -> Container:
        role: Role = "app" if not init else "sidecar" if self.restart_policy else "init"
        limits, requests = (
            {name: amount for name, amount in (said or {}).items() if name in names}
            for said in (self.resources.limits, self.resources.requests)
        )
        return Container(self.name, f"spec.containers[{at}]", limits, requests, role)


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


_decode_pod = from_outside(msgspec.json.Decoder(_Pod).decode)


class _Status(msgspec.Struct, frozen=True):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decode_node = from_outside(msgspec.json.Decoder(_Node).decode)


class _Written(msgspec.Struct, frozen=True):
    """The amounts that the binder last wrote to a node's status."""

    amounts: Mapping[str, int]
    ready: bool  # False while the status may have less
    raised: bool  # a pod needs more than the devices have


_NOTHING = _Written({}, ready=False, raised=False)


class Allocatable:
    """Keeps the extended resources in the status of all nodes up to date."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._written: dict[str, _Written] = {}
        self._due: dict[str, None] = {}
        self._news = asyncio.Event()
        self._wrote: dict[str, dict[str, int]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._forbidden = False
        self._raised_s: dict[str, float] = {}

    @property
    def _config(self) -> DialectConfig:
        return manifest_config(self._state.configuration).dialects

    def observe(self, change: Change) -> None:
        """Record a change of the fold. Pass this method to the reader."""
        node = change.node
        if change.refused:
            return
        if isinstance(change.data, ConfigurationChanged):
            self._note_all()
        elif node is not None and (
            isinstance(change.data, NodeReported | NodeObserved | DevicesRegistered | PodResized)
            or self._written.get(node.name, _NOTHING).raised
            or (change.pod is not None and beyond(change.pod, node, self._config))
        ):
            if not node.ready:
                self._doubt(node.name)
            self._note(node.name)

    def _note(self, node: str) -> None:
        self._due[node] = None
        self._news.set()

    def _doubt(self, node: str) -> None:
        if written := self._written.get(node):
            self._written[node] = msgspec.structs.replace(written, ready=False)

    def _note_all(self) -> None:
        for name in self._state.nodes:
            self._note(name)

    async def run(self, reader: Reader[Change]) -> None:
        """Once the ledger is read, keep the extended resources up to date until cancelled."""
        await reader.caught_up()
        await self.keep()

    async def keep(self) -> None:
        """Keep the extended resources of all nodes up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(), name="publish all nodes again")
            group.create_task(self._write_all(), name="publish changed nodes")

    async def ready(self, pod: PodState, node: NodeState) -> None:
        """Wait until the node's status has enough for the pod and its kubelet has seen that."""
        failures, name = 0, node.name
        while not self._forbidden and (
            name not in self._written
            or name in self._due
            or self._turns[name].locked()
            or beyond(pod, node, self._config)
        ):
            try:
                await self._write(name)
            except KubeUnavailable:
                failures += 1
                await self._clock.pause(BACK_OFF.after(failures))
            else:
                break
        since_s = self._clock.monotonic() - self._raised_s.get(name, -math.inf)
        if since_s < SEEN_S:
            await self._clock.pause(2 * (SEEN_S - since_s))  # jitter may halve the pause

    async def _repeat(self) -> None:
        while True:
            self._note_all()
            await self._clock.pause(AGAIN_S)
            for name in self._state.nodes:
                self._doubt(name)
            gone = self._wrote.keys() - self._state.pods.keys()
            for uid in gone:
                del self._wrote[uid]

    async def _write_all(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            while self._due:
                name = next(iter(self._due))
                try:
                    await self._write(name)
                except KubeUnavailable as error:
                    failures += 1
                    _log.info("allocatable of node %s not updated, retrying: %s", name, error)
                    await self._clock.pause(BACK_OFF.after(failures))
                else:
                    failures = 0
            await self._news.wait()

    async def _write(self, name: str) -> None:
        async with self._turns[name]:
            self._due.pop(name, None)
            node = self._state.nodes.get(name)
            if node is None or node.gone:
                self._written.pop(name, None)
                self._raised_s.pop(name, None)
                return
            # A pod that was changed may have been resized: read its original request.
            while unread := [
                pod
                for pod in node.pods.values()
                if pod.changed_revision and pod.uid not in self._wrote
            ]:
                await self._read(unread[0])
            # Another system's device plugin registers its own amounts.
            amounts = {} if node.foreign_plugin else shown(node, self._config, self._wrote)
            raised = bool(amounts) and amounts != cards(node, self._config)
            now = _Written(amounts, ready=node.ready, raised=raised)
            before = self._written.get(name, _NOTHING)
            if now == before:
                return
            if amounts or before.amounts:
                said = dict.fromkeys(before.amounts) | {n: str(a) for n, a in amounts.items()}
                try:
                    answer = await self._patched(name, said)
                    if not answer.ok:
                        return
                    if left := self._left(answer.body):
                        await self._patched(name, dict.fromkeys(left))
                except KubeUnavailable:
                    self._note(name)
                    raise
            if raised and any(a > before.amounts.get(n, 0) for n, a in amounts.items()):
                self._raised_s[name] = self._clock.monotonic()
            self._written[name] = now

    async def _read(self, pod: PodState) -> None:
        """Record the pod's requests, or no requests if the pod is gone. Raises KubeUnavailable."""
        path = pod_path(pod.submitted.namespace, pod.submitted.name)
        try:
            body = await self._api.find(path)
        except KubeRefused as error:
            raise KubeUnavailable(str(error)) from error
        found = _decode_pod(body) if body is not None else _Pod()
        mine = found.metadata.uid == pod.uid
        try:
            self._wrote[pod.uid] = _written(found.spec, names_of(self._config)) if mine else {}
        except ManifestError as error:  # the kubelet accepted what we cannot add up
            _log.warning("cannot read the requests of pod %s: %s", pod.uid, error)
            self._wrote[pod.uid] = {}

    def _left(self, node: bytes) -> set[str]:
        # Amounts of a device plugin that left: after some minutes the kubelet forgets the plugin
        # but keeps its amounts as 0, and rejects every pod that requests them. It ignores requests
        # of names that its node lacks.
        config = self._config
        there = _decode_node(node).status.allocatable or {}
        old = of_plugins((), config).keys() - names_of(config)
        return {name for name in old if there.get(name) == "0"}

    async def _patched(self, name: str, amounts: Mapping[str, str | None]) -> Answer:
        """Write the amounts to the node's status; None removes one. Raises KubeUnavailable."""
        body = _encode({"status": {"capacity": amounts, "allocatable": amounts}})
        path = f"/api/v1/nodes/{quote(name, safe='')}/status"
        answer = await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        if answer.passing:
            raise KubeUnavailable(str(answer.refusal()))
        if not answer.ok and answer.status != NOT_FOUND and not self._forbidden:
            said = "GPU memory and cores of node %s not published: %s; %s"
            hint = "allow the binder to patch nodes/status, or start it with --no-allocatable"
            _log.warning(said, name, answer.refusal(), hint)
        self._forbidden = answer.status == _FORBIDDEN
        return answer


def _written(spec: _Spec, names: Collection[str]) -> dict[str, int]:
    parts = [*(spec.init_containers or ()), *spec.containers]
    inits = len(spec.init_containers or ())
    containers = [part.read(at, names, init=at < inits) for at, part in enumerate(parts)]
    return node_amounts(containers, {}, field="spec", claimed=frozenset()).extended
