"""Folds the events about one agent's nodes: their inventory, and the placements to answer.

Invariant: a claim, which is a bound placement, is due until it is answered or voided in the ledger.
Any client may write the annotations from which PodAdopted is derived. So on a node with a kubelet,
an adopted pod gets its shares only with proof: a voided placement of these shares in this ledger,
or a record on the node that its agent gave the pod these shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from apportion.core.bounded import remember
from apportion.core.configuration import check
from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import Phase, State
from apportion.core.workloads.document import ManifestError
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    ConfigurationChanged,
    DeviceHealthChanged,
    Event,
    FormatEnabled,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodPlaced,
    PodResized,
    ReportRefused,
    RevisionSetAside,
    Score,
    Share,
    SharesAllocated,
)

HELD_MAX = 2_048  # remembered claims per node: several times the pods that a kubelet runs
ANY = ""  # in place of a pod's uid: any pod


_log = logging.getLogger(__name__)
_Key = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Claim:
    """A bound placement of a pod on this node, whose shares the agent must prepare."""

    placed: PodPlaced
    bound_revision: int
    adopted: bool = False  # may have been allocated and released before in the same attempt
    doubtful: bool = False  # only the node's own book can prove that the pod was given these shares

    @property
    def node(self) -> str:
        """Return the node of the claim."""
        return self.placed.node

    @property
    def pod(self) -> str:
        """Return the uid of the claim's pod."""
        return self.placed.pod

    @property
    def attempt(self) -> int:
        """Return the number of the scheduling attempt whose placement was bound."""
        return self.placed.attempt

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the claim's devices, in the order of its shares."""
        return tuple(dict.fromkeys(share.device for share in self.placed.shares))

    def of(self, container: str) -> str:
        """Return a name for the claim's container `container` that is unique on the node."""
        return f"{self.pod}/{self.attempt}/{container}"

    def sized(self, data: PodResized) -> Claim:
        """Return the claim with its new shares after a resize."""
        return replace(self, placed=msgspec.structs.replace(self.placed, shares=data.shares))

    @property
    def key(self) -> str:
        """Return the claim's unique name, which stays the same when the agent restarts."""
        again = f"/{self.bound_revision}" if self.adopted else ""
        return f"{self.pod}/{self.attempt}/allocated{again}"


@dataclass(slots=True, eq=False)
class NodeView:
    """The fold of the events about one node: the last inventory, and the placements and answers."""

    said: NodeReported | None = None  # the last inventory
    said_revision: int = 0
    said_id: str = ""
    said_basis: int = 0
    refused: bool = False  # the ledger has a refusal after `said`
    # by pod and attempt, then revision
    placed: dict[_Key, dict[int, PodPlaced]] = field(default_factory=dict)
    bound: set[_Key] = field(default_factory=set)
    # Claims of the pods bound last, answered or not, because a container may start again long after
    # its pod was answered. No event shows an agent that a pod is gone, so the oldest claims are
    # dropped, except those of pods that are `there` according to the node's books.
    held: dict[str, Claim] = field(default_factory=dict)
    there: frozenset[str] = frozenset()
    # the last answer by pod; empty if allocated
    answers: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)
    # shares of voided placements
    voided: dict[_Key, set[tuple[Share, ...]]] = field(default_factory=dict)
    # pods whose containers may not know their size yet
    resized: set[str] = field(default_factory=set)
    was_resized: asyncio.Event = field(default_factory=asyncio.Event)

    def take(
        self, data: NodeReported | DeviceHealthChanged | ReportRefused, event: Event, revision: int
    ) -> None:
        """Apply an inventory event, or the refusal of one."""
        self.refused = isinstance(data, ReportRefused)
        if isinstance(data, ReportRefused):
            return
        if isinstance(data, NodeReported):
            self.said = data
        elif self.said is not None:
            health = {"healthy": data.healthy, "health_reason": data.reason}
            devices = [
                msgspec.structs.replace(each, **health) if each.id == data.device else each
                for each in self.said.devices
            ]
            self.said = msgspec.structs.replace(self.said, devices=tuple(devices))
        self.said_revision = revision
        self.said_id, self.said_basis = event.id, event.basis

    def hold(self, claim: Claim) -> None:
        """Store the claim and wake the callers that wait for it."""
        self.let_go(claim.pod)
        self.held[claim.pod] = claim
        if len(self.held) > HELD_MAX:
            self.let_go(next((pod for pod in self.held if pod not in self.there), ""))
        for waiter in (*self.waiting.pop(claim.pod, ()), *self.waiting.pop(ANY, ())):
            if not waiter.done():
                waiter.set_result(None)

    def let_go(self, pod: str) -> None:
        """Forget the claim of the pod with this uid, and the answer to it."""
        self.held.pop(pod, None)
        self.answers.pop(pod, None)
        self.resized.discard(pod)

    def give_up(self, key: _Key, placements: Iterable[PodPlaced]) -> None:
        """Remember the shares of voided placements, whose bindings may still take effect."""
        remember(self.voided, key, {placed.shares for placed in placements}, most=HELD_MAX)

    async def bound_claim(self, pod: str) -> Claim:
        """Wait until the pod has a bound claim, and return the claim."""
        while pod not in self.held:
            await self._next(pod)
        return self.held[pod]

    async def holding(self, container: str) -> Claim:
        """Wait for a claim with shares for a container of this name; return the newest claim."""
        while True:
            for claim in reversed(self.held.values()):
                if any(share.container == container for share in claim.placed.shares):
                    return claim
            await self._next(ANY)

    async def another(self) -> None:
        """Wait until any pod has a new claim."""
        await self._next(ANY)

    def unbound(self) -> bool:
        """Return True if a pod is placed here with shares and its binding was not read yet."""
        return any(
            placed.shares
            for key, placements in self.placed.items()
            if key not in self.bound
            for placed in placements.values()
        )

    async def _next(self, pod: str) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(pod, []).append(waiter)
        await waiter


class FleetView:
    """The fold of the ledger over all nodes of one agent."""

    def __init__(
        self, nodes: Iterable[str], *, remember: bool = False, rules: Rules | None = None
    ) -> None:
        """Start empty. `remember`: keep answered claims, which a kubelet may request again."""
        self._remember = remember
        self.rules = rules or Rules()
        self.nodes = {name: NodeView() for name in nodes}
        self.due: dict[_Key, Claim] = {}
        self.became_due = asyncio.Event()
        self.configuration = Configuration()
        self.configured = asyncio.Event()
        self.refused_count = 0

    def begin(self, state: State) -> None:
        """Start from a snapshot, because the ledger's beginning was dropped."""
        self.configuration = state.configuration
        self.rules = state.rules
        for name, view in self.nodes.items():
            node = state.nodes.get(name)
            if node is None:
                continue
            if node.reported is not None:
                devices = tuple(
                    msgspec.structs.replace(
                        each.device,
                        healthy=each.agent_health[0],
                        health_reason=each.agent_health[1],
                    )
                    for each in node.devices
                )
                view.said = msgspec.structs.replace(node.reported, devices=devices)
                view.said_revision = state.revision
            view.refused = node.refused is not None
            for pod in node.pods.values():
                if pod.placement is None:
                    continue
                devices = view.said.devices if view.said is not None else ()
                placed = handed(placed_of(pod, pod.placement), pod.submitted, devices)
                ran = pod.adopted and pod.phase is Phase.ALLOCATED
                claim = Claim(placed, pod.bound_revision, adopted=pod.adopted, doubtful=ran)
                match pod.phase:
                    # A pod that never ran by our placement is no proof.
                    case _ if self._remember and pod.adopted and not (ran and placed.attempt > 0):
                        pass
                    case Phase.ALLOCATED if self._remember:
                        view.hold(claim)
                        view.answers[claim.pod] = ""
                    case Phase.PLACED:
                        view.placed[pod.uid, pod.attempt] = {pod.placed_revision: placed}
                    case Phase.BOUND:
                        view.placed[pod.uid, pod.attempt] = {pod.placed_revision: placed}
                        self._fall_due(view, claim)

    def apply(self, record: Record, event: Event) -> str:
        """Fold one event. Return the node of an inventory event, or an empty string."""
        data, revision = event.data, record.revision
        if isinstance(data, ConfigurationChanged):
            self._configure(data, revision)
            return ""
        if isinstance(data, FormatEnabled):
            self.rules.enable(revision, data)
        if isinstance(data, RevisionSetAside):
            self.rules.heed(revision, data)
        node = self.nodes.get(getattr(data, "node", ""))
        if node is None:
            return ""
        match data:
            case NodeReported() | DeviceHealthChanged() | ReportRefused():
                node.take(data, event, revision)
                return data.node
            case PodPlaced():
                placements = node.placed.setdefault((data.pod, data.attempt), {})
                placements[revision] = data
            case PodResized():
                self._resized(node, data)
            case PodAdopted():
                self._adopted(node, data, revision)
            case PodBound():
                self._bound(node, data, revision, event.cause)
            case PlacementVoided() | SharesAllocated() | AllocationFailed():
                key = (data.pod, data.attempt)
                placements = node.placed.pop(key, {})
                if self._remember and isinstance(data, PlacementVoided):
                    node.give_up(key, placements.values())
                node.bound.discard(key)
                self.due.pop(key, None)
                self._answered(node, data)
        return ""

    def refuse(self, record: Record, reason: str) -> str:  # noqa: ARG002 - the reader logs both
        """Count an event that cannot be read by any build, and that the fold therefore skips."""
        self.refused_count += 1
        return ""

    def take_due(self) -> list[Claim]:
        """Return the claims to answer now, in the order of their bindings, and clear the list."""
        due = list(self.due.values())
        self.due.clear()
        self.became_due.clear()
        return due

    def _configure(self, data: ConfigurationChanged, revision: int) -> None:
        try:
            check(data.configuration)
        except ManifestError as error:
            _log.error("revision %d: invalid configuration, ignored: %s", revision, error)
            self.refused_count += 1
            return
        self.configuration = data.configuration
        self.configured.set()

    def _bound(self, node: NodeView, data: PodBound, revision: int, cause: int) -> None:
        key = (data.pod, data.attempt)
        placements = node.placed.get(key)
        if not placements or key in node.bound:
            return
        placed = placements[cause if cause in placements else min(placements)]
        self._fall_due(node, Claim(placed, revision))

    def _adopted(self, node: NodeView, data: PodAdopted, revision: int) -> None:
        devices = node.said.devices if node.said is not None else ()
        as_placed = PodPlaced(
            pod=data.pod,
            namespace=data.submitted.namespace,
            name=data.submitted.name,
            attempt=data.attempt,
            node=data.node,
            shares=data.shares,
            score=Score(node=data.node, total=0.0),
        )
        placed = handed(as_placed, data.submitted, devices)
        known = data.shares in node.voided.get((data.pod, data.attempt), ())
        claim = Claim(placed, revision, adopted=True, doubtful=not known)
        # Pods placed by another scheduler have no attempt, so their attempt is 0.
        if self._remember and not (known or (data.running and data.attempt > 0)):
            _log.warning("pod %s gets no devices: nothing proves its annotations", data.pod)
        elif data.running:
            if self._remember:
                node.hold(claim)
                node.answers[data.pod] = ""
        elif (data.pod, data.attempt) not in self.due:
            # Due even if its binding was seen: an intake refuses answers to released pods.
            self._fall_due(node, claim)

    def _resized(self, node: NodeView, data: PodResized) -> None:
        due = self.due.get((data.pod, data.attempt))
        if due is not None:
            self.due[data.pod, data.attempt] = due.sized(data)
        claim = node.held.get(data.pod)
        if claim is not None and claim.attempt == data.attempt:
            node.held[data.pod] = claim.sized(data)
            node.resized.add(data.pod)
            node.was_resized.set()

    def _fall_due(self, node: NodeView, claim: Claim) -> None:
        node.bound.add((claim.pod, claim.attempt))
        self.due[claim.pod, claim.attempt] = claim
        self.became_due.set()
        if self._remember:
            node.hold(claim)

    @staticmethod
    def _answered(
        node: NodeView, data: PlacementVoided | SharesAllocated | AllocationFailed
    ) -> None:
        claim = node.held.get(data.pod)
        if claim is None or claim.attempt != data.attempt:
            return
        if isinstance(data, PlacementVoided):
            node.let_go(data.pod)
        else:
            node.answers[data.pod] = data.message if isinstance(data, AllocationFailed) else ""
