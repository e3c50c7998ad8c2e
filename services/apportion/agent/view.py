"""What the ledger says about the nodes of one agent, as far as the agent acts on it.

A small fold of its own: an agent reads its nodes' inventory, placements, bindings and allocations,
never the whole cluster. It cannot judge whether a placement was accepted; the binder can, and names
in its event's `cause` the one that it bound. Invariant: a claim is due exactly while the ledger
holds its placement and its binding and neither an answer nor a void, so after any restart what is
due is what is undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from apportion.core.configuration import ConfigurationError, check
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import Phase, PodState, State
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    ConfigurationChanged,
    Device,
    DeviceHealthChanged,
    Event,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodPlaced,
    Share,
    SharesAllocated,
)

CHANNELS = ("inventory", "placement", "binding", "allocation")
"""The channels below `apportion.v1` that an agent follows, each for its own nodes."""
ADOPTIONS = "adoption"
"""One more, whose subjects name the pod as well."""


_log = logging.getLogger(__name__)
_Key = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Claim:
    """One bound placement of one pod on this node; `devices` in the order of its shares.

    A pod that was `adopted` may have been allocated before, and let go of, by the same attempt.
    """

    node: str
    pod: str
    attempt: int
    devices: tuple[str, ...]
    bound_revision: int
    adopted: bool = False

    @property
    def key(self) -> str:
        """What tells the claim from every other one, and is the same in every life of an agent."""
        again = f"/{self.bound_revision}" if self.adopted else ""
        return f"{self.pod}/{self.attempt}/allocated{again}"


@dataclass(slots=True, eq=False)
class NodeView:
    """One node: what was last said of its inventory, and what is placed there without an answer.

    `placed` has by pod and attempt, and by revision, the devices of each placement; `bound` the
    pods and attempts whose binding was seen.
    """

    said: NodeReported | None = None
    said_revision: int = 0
    said_id: str = ""
    said_basis: int = 0
    placed: dict[_Key, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    bound: set[_Key] = field(default_factory=set)


class FleetView:
    """The fold over all nodes of one agent."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.nodes = {name: NodeView() for name in nodes}
        self.due: dict[_Key, Claim] = {}
        self.became_due = asyncio.Event()
        self.configuration = Configuration()
        self.configured = asyncio.Event()
        self.refused_count = 0

    def begin(self, state: State) -> None:
        """Take from a snapshot what the ledger, whose beginning was dropped, no longer tells."""
        self.configuration = state.configuration
        for name, view in self.nodes.items():
            node = state.nodes.get(name)
            if node is None:
                continue
            if node.reported is not None:
                view.said = msgspec.structs.replace(
                    node.reported, devices=tuple(_as_said(device) for device in node.devices)
                )
                view.said_revision = state.revision
            for pod in node.pods.values():
                self._hold(view, pod)

    def apply(self, record: Record, event: Event) -> str:
        """Fold one event; the name of the node whose inventory it changed, else nothing."""
        data, revision = event.data, record.revision
        if isinstance(data, ConfigurationChanged):
            self._configure(data, revision)
            return ""
        node = self.nodes.get(getattr(data, "node", ""))
        if node is None:
            return ""
        match data:
            case NodeReported() | DeviceHealthChanged():
                node.said = _said(node.said, data)
                node.said_revision = revision
                node.said_id = event.id
                node.said_basis = event.basis
                return str(data.node)
            case PodPlaced():
                placements = node.placed.setdefault((data.pod, data.attempt), {})
                placements[revision] = _devices(data.shares)
            case PodAdopted() if not data.running:
                self._adopted(node, data, revision)
            case PodBound():
                self._bound(node, data, revision, event.cause)
            case PlacementVoided() | SharesAllocated() | AllocationFailed():
                key = (data.pod, data.attempt)
                node.placed.pop(key, None)
                node.bound.discard(key)
                self.due.pop(key, None)
        return ""

    def refuse(self, record: Record, reason: str) -> str:  # noqa: ARG002 - the reader logs both
        """Count an event that no reader applies."""
        self.refused_count += 1
        return ""

    def take_due(self) -> list[Claim]:
        """The claims to answer now, in the order of their bindings; each is handed out once."""
        due = list(self.due.values())
        self.due.clear()
        self.became_due.clear()
        return due

    def _configure(self, data: ConfigurationChanged, revision: int) -> None:
        """Take the document, unless every fold refuses it."""
        try:
            check(data.configuration)
        except ConfigurationError as error:
            _log.error("revision %d: this configuration is not obeyed: %s", revision, error)
            self.refused_count += 1
            return
        self.configuration = data.configuration
        self.configured.set()

    def _hold(self, node: NodeView, pod: PodState) -> None:
        """A placement of a snapshot that is not answered yet."""
        placed, key = pod.placement, (pod.uid, pod.attempt)
        if placed is None or pod.phase not in (Phase.PLACED, Phase.BOUND):
            return
        node.placed[key] = {pod.placed_revision: _devices(placed.shares)}
        if pod.phase is Phase.BOUND:
            node.bound.add(key)
            self.due[key] = Claim(
                placed.node, *key, _devices(placed.shares), pod.bound_revision, adopted=pod.adopted
            )
            self.became_due.set()

    def _bound(self, node: NodeView, data: PodBound, revision: int, cause: int) -> None:
        key = (data.pod, data.attempt)
        placements = node.placed.get(key)
        if not placements or key in node.bound:
            return
        devices = placements[cause if cause in placements else min(placements)]
        node.bound.add(key)
        self.due[key] = Claim(data.node, data.pod, data.attempt, devices, revision)
        self.became_due.set()

    def _adopted(self, node: NodeView, data: PodAdopted, revision: int) -> None:
        """Bound by somebody else, and perhaps not started yet: a claim like any other."""
        key = (data.pod, data.attempt)
        if key not in node.bound:
            node.bound.add(key)
            self.due[key] = Claim(data.node, *key, _devices(data.shares), revision, adopted=True)
            self.became_due.set()


def _as_said(state: DeviceState) -> Device:
    healthy, reason = state.agent_health
    return msgspec.structs.replace(state.device, healthy=healthy, health_reason=reason)


def _devices(shares: tuple[Share, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(share.device for share in shares))


def _said(
    said: NodeReported | None, news: NodeReported | DeviceHealthChanged
) -> NodeReported | None:
    if isinstance(news, NodeReported) or said is None:
        return news if isinstance(news, NodeReported) else None
    return msgspec.structs.replace(
        said, devices=tuple(with_health(device, news) for device in said.devices)
    )


def with_health(device: Device, news: DeviceHealthChanged) -> Device:
    """The device after the news, if it is about this device."""
    if device.id != news.device:
        return device
    return msgspec.structs.replace(device, healthy=news.healthy, health_reason=news.reason)
