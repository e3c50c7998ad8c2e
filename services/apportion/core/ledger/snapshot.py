"""Snapshots of a state, so that a restart folds only the tail of the ledger.

A snapshot is taken in steps while the fold continues. Each step writes a frame of nodes and pods. A
node or pod that changes later is written again, and the later copy counts. The last step writes all
that is left, so the snapshot is consistent at one revision.

    magic │ format │ frame │ frame │ … │ head │ SHA-256 of all before it

Invariant: `restore(bytes taken at r)` equals `fold(0..r)`, including the order of every map."""

import struct
from collections.abc import Callable
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from apportion.core.devices.cordons import Cordon
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.fold import Change, host_of
from apportion.core.ledger.handlers.past_use import held_by_pods
from apportion.core.ledger.past_use import KeptUse, restored
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import (
    Departed,
    GroupState,
    IdleShare,
    NodeState,
    PodState,
    RefusedEvent,
    RefusedReport,
    Resize,
    State,
)
from apportion_schemas import (
    BudgetObserved,
    Configuration,
    Device,
    DevicesRegistered,
    DifferenceFound,
    NamespaceObserved,
    NodeObserved,
    NodeReported,
    NodesReserved,
    PodEvicted,
    PodGroupObserved,
    PodRejected,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaObserved,
    Shape,
    VolumeClaimObserved,
)

# Raise it when the meaning of these bytes changes, or what the fold makes of any event.
FORMAT = 22
MAGIC = b"apportion snapshot\n"
_START = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">I")
_DIGEST_BYTES = 32
_NO_SHAPE = Shape()
_UNREADABLE = (
    msgspec.MsgspecError, ValueError, LookupError, struct.error, RecursionError,
)  # fmt: skip


class SnapshotError(Exception):
    """Raised if a snapshot cannot be used; fold the ledger instead."""


class CorruptSnapshot(SnapshotError):
    """Raised if the snapshot's bytes differ from those that were written."""


class OtherFormat(SnapshotError):
    """Raised if another build wrote the snapshot; its fold may differ from ours."""


class _Device(Struct, array_like=True, gc=False):
    """A device with its free amounts; `device` is an index in `_listed`, or the device itself."""

    device: int | Device
    memory_free_mib: int
    cores_free: int
    slots_free: int
    template_cpu_free: int
    slices: int
    group: str
    present: bool
    agent_health: tuple[bool, str]
    healthy: bool
    health_reason: str
    cordon: str
    cordons: tuple[Cordon, ...]


class _Node(Struct, array_like=True):
    name: str
    devices: list[_Device]
    reported: NodeReported | None
    reported_revision: int
    registered: DevicesRegistered | None
    observed: NodeObserved | None
    gone: bool
    cordon: str
    cordons: tuple[Cordon, ...]
    cpu_used_milli: int
    memory_used_mib: int
    extended_used: dict[str, int]
    fence: int
    chain: str
    silent: str
    presence: int
    refused: RefusedReport | None


class _Part(Struct, array_like=True, tag=0):
    """A frame: some nodes and pods, and the names of those removed since the previous frame.

    A pod has a number for its shape, instead of the shape and its key. Shapes are numbered in the
    order of their first frame."""

    nodes: list[_Node]
    shapes: list[tuple[bytes, Shape]]
    pods: list[PodState]
    gone: list[str]
    forgotten: list[str] = []


class _Head(Struct, array_like=True, tag=1):
    revision: int
    groups: list[tuple[str, PodGroupObserved | None, int, int, dict[str, None]]]
    queues: dict[str, QueueObserved]
    failing: dict[str, str]
    rejected: dict[str, PodRejected]
    node_of_device: dict[str, str]
    device_cordons: dict[str, tuple[Cordon, ...]]
    policy: PolicyChanged
    policy_revision: int
    prices: PricesLearnt | None
    prices_revision: int
    configuration: Configuration
    configuration_revision: int
    refused_events: list[RefusedEvent]
    refused_count: int
    released_count: int
    differences: dict[str, int]
    differing: dict[str, DifferenceFound]
    nodes: int
    pods: int
    quotas: dict[str, dict[str, QuotaObserved]] = {}
    of_kubernetes: bool = False
    evictions: dict[str, PodEvicted] = {}
    nominated: dict[str, str] = {}
    budgets: dict[str, dict[str, BudgetObserved]] = {}
    volume_claims: dict[str, dict[str, VolumeClaimObserved]] = {}
    namespaces: dict[str, NamespaceObserved] = {}
    resizes: dict[str, Resize] = {}
    left: dict[str, None] = {}
    departed: dict[str, Departed] = {}
    gangs_left: dict[str, int] = {}
    limits_checked: dict[str, int] = {}
    rules: Rules = msgspec.field(default_factory=Rules)
    past_use: KeptUse | None = None
    idle: dict[str, dict[str, IdleShare]] | None = None
    reserved: NodesReserved | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Part | _Head).decode


class Taken(NamedTuple):
    """A finished snapshot: the pieces of its bytes, in order, and its revision."""

    parts: list[bytes]
    revision: int

    @property
    def size_bytes(self) -> int:
        """Return the total length of the snapshot, in bytes."""
        return sum(map(len, self.parts))


class Taking:
    """Takes a snapshot step by step while the fold goes on. Pass every change to `observe`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._nodes = dict.fromkeys(state.nodes)
        self._pods = dict.fromkeys(state.pods)
        self._forgotten: dict[str, None] = {}
        self._shapes: dict[bytes, int] = {}
        self._parts: list[bytes] = []
        self._hash = sha256()
        self._moved = False
        self._put(MAGIC + _START.pack(FORMAT))

    @property
    def due(self) -> int:
        """Return how many nodes and pods are still to be written, including changed ones."""
        return len(self._nodes) + len(self._pods)

    def observe(self, change: Change) -> None:
        """Mark each node and pod that this event changed or names, so that it is written again.

        This includes refused events, because they move a fence and use up an attempt."""
        data = change.data
        names = {change.node.name if change.node else None, getattr(data, "node", None)}
        uids = {getattr(data, name, None) for name in ("pod", "uid")}
        if change.pod is not None:
            uids.add(change.pod.uid)
        self._nodes.update(dict.fromkeys(name for name in names if name in self._state.nodes))
        self._pods.update(dict.fromkeys(uid for uid in uids if uid))
        for node in change.forgotten:
            self._nodes.pop(node.name, None)
            self._forgotten[node.name] = None
        self._moved |= isinstance(data, NodeReported)

    def step(self, items: int) -> None:
        """Write up to `items` nodes and pods as they are now."""
        nodes = [self._state.nodes.get(name) for name in _pop(self._nodes, items)]
        shapes: list[tuple[bytes, Shape]] = []
        pods: list[PodState] = []
        gone: list[str] = []
        for uid in _pop(self._pods, items - len(nodes)):
            pod = self._state.pods.get(uid)
            if pod is None:
                gone.append(uid)
                continue
            if pod.shape_key not in self._shapes:
                self._shapes[pod.shape_key] = len(self._shapes)
                shapes.append((pod.shape_key, pod.submitted.shape))
            number = self._shapes[pod.shape_key]
            submitted = structs.replace(pod.submitted, shape=_NO_SHAPE)
            key = _NUMBER.pack(number)
            pods.append(structs.replace(pod, submitted=submitted, shape_key=key))
        forgotten = _pop(self._forgotten, len(self._forgotten))
        self._frame(
            _Part([_node_out(node) for node in nodes if node], shapes, pods, gone, forgotten)
        )

    def finish(self) -> Taken:
        """Write all that is left, and return the snapshot of the state's current revision."""
        if self._moved:
            # A report may take devices from gone nodes, which no change names.
            self._nodes.update(
                dict.fromkeys(name for name, node in self._state.nodes.items() if node.gone)
            )
        if self.due or self._forgotten:
            self.step(self.due)
        state = self._state
        head = _Head(
            groups=[
                (name, group.observed, group.since, group.priority, group.held)
                for name, group in state.groups.items()
            ],
            nodes=len(state.nodes),
            pods=len(state.pods),
            rules=state.rules.upto(state.revision),
            past_use=None if state.past_use is None else state.past_use.kept(),
            **{name: getattr(state, name) for name in _HEAD_FIELDS if name != "rules"},
        )
        self._frame(head)
        self._parts.append(self._hash.digest())
        return Taken(self._parts, state.revision)

    def _frame(self, frame: _Part | _Head) -> None:
        data = _encode(frame)
        self._put(_LENGTH.pack(len(data)))
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self._hash.update(data)


def take(state: State) -> bytes:
    """Return a complete snapshot of the state, taken in one go."""
    return b"".join(Taking(state).finish().parts)


def restore(data: bytes | bytearray) -> State:
    """Return the state of a snapshot. Raises OtherFormat or CorruptSnapshot."""
    start = len(MAGIC) + _START.size
    if not data.startswith(MAGIC) or len(data) < start + _DIGEST_BYTES:
        raise CorruptSnapshot("not a snapshot of Apportion, or its beginning is missing")
    (written,) = _START.unpack_from(data, len(MAGIC))
    if written != FORMAT:
        raise OtherFormat(f"the snapshot has format {written}, but this build reads {FORMAT}")
    view = memoryview(data)
    if sha256(view[:-_DIGEST_BYTES]).digest() != view[-_DIGEST_BYTES:]:
        raise CorruptSnapshot("the snapshot's digest does not match its bytes")
    body = view[start:-_DIGEST_BYTES]
    state, shapes = State(), list[tuple[bytes, Shape]]()
    head: _Head | None = None
    try:
        at = 0
        while at < len(body):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size + length
            decoded = _decode(body[at - length : at])
            if isinstance(decoded, _Head):
                head = decoded
            else:
                _part_in(state, decoded, shapes)
        if head is None or (head.nodes, head.pods) != (len(state.nodes), len(state.pods)):
            raise CorruptSnapshot("the snapshot has fewer nodes or pods than it declares")
        _head_in(state, head)
    except _UNREADABLE as error:
        raise CorruptSnapshot(f"a frame of the snapshot cannot be read: {error}") from None
    state.shapes.update(shapes)  # a weak map: shapes without a pod vanish with the list
    return state


def _pop(due: dict[str, None], items: int) -> list[str]:
    names = [name for name, _ in zip(due, range(items), strict=False)]
    for name in names:
        del due[name]
    return names


# ------------------------------------------------------------------ out


def _node_out(node: NodeState) -> _Node:
    listed, places = _listed(node), dict[str, list[int]]()
    for place, device in enumerate(listed):
        places.setdefault(device.id, []).append(place)
    devices = []
    for each in node.devices:
        same = (at for at in places.get(each.device.id, ()) if listed[at] is each.device)
        place_or_device = next(same, each.device)
        devices.append(_Device(place_or_device, *(getattr(each, name) for name in _AMOUNTS)))
    return _Node(node.name, devices, *(getattr(node, name) for name in _NODE_FIELDS))


def _listed(node: NodeState) -> tuple[Device, ...]:
    lists = (node.reported, node.registered)
    return tuple(device for each in lists if each is not None for device in each.devices)


_fields: Callable[[Struct], tuple[Any, ...]] = structs.astuple
_AMOUNTS = _Device.__struct_fields__[1:]
_NODE_FIELDS = _Node.__struct_fields__[2:]
_HEAD_FIELDS = tuple(
    name for name in _Head.__struct_fields__ if name not in {"groups", "nodes", "pods", "past_use"}
)


# ------------------------------------------------------------------ in


def _part_in(state: State, part: _Part, shapes: list[tuple[bytes, Shape]]) -> None:
    for name in part.forgotten:
        state.nodes.pop(name, None)
    for node in part.nodes:
        state.nodes[node.name] = _node_in(node)
    shapes.extend(part.shapes)
    for uid in part.gone:
        state.pods.pop(uid, None)
    for pod in part.pods:
        pod.shape_key, shape = shapes[_NUMBER.unpack(pod.shape_key)[0]]
        submitted = pod.submitted
        structs.force_setattr(submitted, "shape", shape)  # not shared yet
        state.pods[submitted.uid] = pod


def _node_in(node: _Node) -> NodeState:
    made = NodeState(node.name)
    for name, value in zip(_NODE_FIELDS, _fields(node)[2:], strict=True):
        setattr(made, name, value)
    listed = _listed(made)
    made.devices = [
        DeviceState(
            listed[each.device] if isinstance(each.device, int) else each.device, *_fields(each)[1:]
        )
        for each in node.devices
    ]
    made.by_id = {each.device.id: each for each in made.devices}
    made.host = host_of(made)
    return made


def _head_in(state: State, head: _Head) -> None:
    for name in _HEAD_FIELDS:
        setattr(state, name, getattr(head, name))
    state.groups = {
        name: GroupState(observed, since=since, priority=priority, held=held)
        for name, observed, since, priority, held in head.groups
    }
    pods = list(state.pods.values())
    revisions = [pod.submitted_revision for pod in pods]
    if revisions != sorted(revisions):  # one left and returned while the snapshot was taken
        pods.sort(key=attrgetter("submitted_revision"))
        state.pods = {pod.submitted.uid: pod for pod in pods}
    for pod in pods:
        submitted = pod.submitted
        if submitted.group:
            state.groups[submitted.group].pods[submitted.uid] = pod
    pods.sort(key=attrgetter("placed_revision"))
    nodes = state.nodes
    for pod in pods:
        placement = pod.placement
        if placement is not None:
            nodes[placement.node].pods[pod.submitted.uid] = pod
    if head.past_use is not None:
        state.past_use = restored(head.past_use, held_by_pods(state))
