"""What the ledger says about the nodes of one agent, as far as the agent acts on it.

A small fold of its own: an agent reads its nodes' inventory, placements, bindings and allocations,
never the whole cluster. It cannot judge whether a placement was accepted; the binder can, and names
in its event's `cause` the one that it bound. Invariant: a claim is due exactly while the ledger
holds its placement and its binding and neither an answer nor a void, so after any restart what is
due is what is undone.

What a pod's annotations say comes here as well, as PodAdopted, and anybody may write annotations.
So a kubelet's node hands nothing out for an adopted pod but what that proves to have had: this
ledger had placed it so before it gave the placement up; or it is said to run by a placement of
ours, and then the node's own book must have it that just these shares were handed out to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from apportion.core.configuration import check
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import Phase, PodState, State
from apportion.core.workloads.document import ManifestError
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    ConfigurationChanged,
    Device,
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

HELD_MAX = 2_048
"""Pods of one node that can be told what they hold: several times what a kubelet runs."""
ANY = ""
"""In place of a pod's uid: whichever comes next."""


_log = logging.getLogger(__name__)
_Key = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Claim:
    """One bound placement of one pod on this node.

    A pod that was `adopted` may have been allocated before, and let go of, by the same attempt.
    `doubtful`: only the node's own book can tell that it has had this."""

    placed: PodPlaced
    bound_revision: int
    adopted: bool = False
    doubtful: bool = False

    @property
    def node(self) -> str:
        """The node that it is placed on."""
        return self.placed.node

    @property
    def pod(self) -> str:
        """The uid of the pod that claims."""
        return self.placed.pod

    @property
    def attempt(self) -> int:
        """The attempt that was bound."""
        return self.placed.attempt

    @property
    def devices(self) -> tuple[str, ...]:
        """Its devices, in the order of its shares."""
        return tuple(dict.fromkeys(share.device for share in self.placed.shares))

    def of(self, container: str) -> str:
        """What tells a container of the claim from every other one."""
        return f"{self.pod}/{self.attempt}/{container}"

    def sized(self, data: PodResized) -> Claim:
        """The claim with other amounts of its devices."""
        return replace(self, placed=msgspec.structs.replace(self.placed, shares=data.shares))

    @property
    def key(self) -> str:
        """What tells the claim from every other one, and is the same in every life of an agent."""
        again = f"/{self.bound_revision}" if self.adopted else ""
        return f"{self.pod}/{self.attempt}/allocated{again}"


@dataclass(slots=True, eq=False)
class NodeView:
    """One node: what was last said of its inventory, and what is placed there without an answer.

    `refused`: something that was said of it since was not taken, and the ledger has it so. `placed`
    has by pod and attempt, and by revision, each placement; `bound` the pods and attempts whose
    binding was seen. `held` are the claims of the pods that were bound last, answered or not: a
    container is started again long after its pod was answered for. Nobody tells an agent that a pod
    is gone, so the oldest ones are forgotten but for those that are `there`: by the node's books
    when these were last looked at. `answers` has the last answer for each of them, empty if it is
    allocated. `resized` are those whose containers may not know their size, `voided` what was
    placed and given up."""

    said: NodeReported | None = None
    said_revision: int = 0
    said_id: str = ""
    said_basis: int = 0
    refused: bool = False
    placed: dict[_Key, dict[int, PodPlaced]] = field(default_factory=dict)
    bound: set[_Key] = field(default_factory=set)
    held: dict[str, Claim] = field(default_factory=dict)
    there: frozenset[str] = frozenset()
    answers: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)
    voided: dict[_Key, set[tuple[Share, ...]]] = field(default_factory=dict)
    resized: set[str] = field(default_factory=set)
    was_resized: asyncio.Event = field(default_factory=asyncio.Event)

    def take(
        self, data: NodeReported | DeviceHealthChanged | ReportRefused, event: Event, revision: int
    ) -> None:
        """Take what was said of the inventory, or that something was refused of it."""
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
        """Remember the claim, for whoever asks or waits for it."""
        self.let_go(claim.pod)
        self.held[claim.pod] = claim
        if len(self.held) > HELD_MAX:
            self.let_go(next((pod for pod in self.held if pod not in self.there), ""))
        for waiter in (*self.waiting.pop(claim.pod, ()), *self.waiting.pop(ANY, ())):
            if not waiter.done():
                waiter.set_result(None)

    def let_go(self, pod: str) -> None:
        """Forget its claim, and what was said of it."""
        self.held.pop(pod, None)
        self.answers.pop(pod, None)
        self.resized.discard(pod)

    def give_up(self, key: _Key, placements: Iterable[PodPlaced]) -> None:
        """Remember what was placed: its binding may take effect yet."""
        self.voided[key] = {placed.shares for placed in placements}
        if len(self.voided) > HELD_MAX:
            del self.voided[next(iter(self.voided))]

    async def bound_claim(self, pod: str) -> Claim:
        """The claim of that pod, as soon as there is one."""
        while pod not in self.held:
            await self._next(pod)
        return self.held[pod]

    async def holding(self, container: str) -> Claim:
        """The newest claim with shares under that name, as soon as there is one."""
        while True:
            for claim in reversed(self.held.values()):
                if any(share.container == container for share in claim.placed.shares):
                    return claim
            await self._next(ANY)

    async def another(self) -> None:
        """Return once any pod has another claim."""
        await self._next(ANY)

    def unbound(self) -> bool:
        """Whether a pod with shares is placed here whose binding was not seen."""
        return any(
            placed.shares
            for key, placements in self.placed.items()
            if key not in self.bound
            for placed in placements.values()
        )

    async def _next(self, pod: str) -> None:
        """Return once the pod, or any, has another claim."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(pod, []).append(waiter)
        await waiter


class FleetView:
    """The fold over all nodes of one agent."""

    def __init__(
        self, nodes: Iterable[str], *, remember: bool = False, rules: Rules | None = None
    ) -> None:
        """`remember`: keep claims after they are answered, for a kubelet that asks for them.

        `rules` are those by which the ledger is read."""
        self._remember = remember
        self.rules = rules or Rules()
        self.nodes = {name: NodeView() for name in nodes}
        self.due: dict[_Key, Claim] = {}
        self.became_due = asyncio.Event()
        self.configuration = Configuration()
        self.configured = asyncio.Event()
        self.refused_count = 0

    def begin(self, state: State) -> None:
        """Take from a snapshot what the ledger, whose beginning was dropped, no longer tells."""
        self.configuration = state.configuration
        self.rules = state.rules
        for name, view in self.nodes.items():
            node = state.nodes.get(name)
            if node is None:
                continue
            if node.reported is not None:
                view.said = msgspec.structs.replace(
                    node.reported, devices=tuple(_as_said(device) for device in node.devices)
                )
                view.said_revision = state.revision
            view.refused = node.refused is not None
            for pod in node.pods.values():
                self._hold(view, pod)

    def apply(self, record: Record, event: Event) -> str:
        """Fold one event; the node of whose inventory it tells, else nothing."""
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
        except ManifestError as error:
            _log.error("revision %d: this configuration is not obeyed: %s", revision, error)
            self.refused_count += 1
            return
        self.configuration = data.configuration
        self.configured.set()

    def _hold(self, node: NodeView, pod: PodState) -> None:
        """A placement of a snapshot that is not answered yet."""
        if pod.placement is None:
            return
        devices = node.said.devices if node.said is not None else ()
        placed = handed(placed_of(pod, pod.placement), pod.submitted, devices)
        ran = pod.adopted and pod.phase is Phase.ALLOCATED
        claim = Claim(placed, pod.bound_revision, adopted=pod.adopted, doubtful=ran)
        match pod.phase:
            case _ if self._remember and pod.adopted and not _ran(pod):
                pass
            case Phase.ALLOCATED if self._remember:
                node.hold(claim)
                node.answers[claim.pod] = ""
            case Phase.PLACED:
                node.placed[pod.uid, pod.attempt] = {pod.placed_revision: placed}
            case Phase.BOUND:
                node.placed[pod.uid, pod.attempt] = {pod.placed_revision: placed}
                self._fall_due(node, claim)

    def _bound(self, node: NodeView, data: PodBound, revision: int, cause: int) -> None:
        key = (data.pod, data.attempt)
        placements = node.placed.get(key)
        if not placements or key in node.bound:
            return
        placed = placements[cause if cause in placements else min(placements)]
        self._fall_due(node, Claim(placed, revision))

    def _adopted(self, node: NodeView, data: PodAdopted, revision: int) -> None:
        """Bound by somebody else; one that has not started yet is a claim like any other."""
        devices = node.said.devices if node.said is not None else ()
        placed = handed(_as_placed(data), data.submitted, devices)
        known = data.shares in node.voided.get((data.pod, data.attempt), ())
        claim = Claim(placed, revision, adopted=True, doubtful=not known)
        # Pods that another scheduler placed speak of no attempt.
        if self._remember and not (known or (data.running and data.attempt > 0)):
            _log.warning("pod %s is given nothing: only its annotations say that it may", data.pod)
        elif data.running:
            if self._remember:
                node.hold(claim)
                node.answers[data.pod] = ""
        elif (data.pod, data.attempt) not in self.due:
            # Nor is it enough that its binding was seen: an intake refused that answer, if the pod
            # was let go of by then.
            self._fall_due(node, claim)

    def _resized(self, node: NodeView, data: PodResized) -> None:
        """What it holds from now on: of one that runs, and of one that is about to start."""
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
        """Of a claim that is remembered: what was said of it, or that it is one no more."""
        claim = node.held.get(data.pod)
        if claim is None or claim.attempt != data.attempt:
            return
        if isinstance(data, PlacementVoided):
            node.let_go(data.pod)
        else:
            node.answers[data.pod] = data.message if isinstance(data, AllocationFailed) else ""


def _as_said(state: DeviceState) -> Device:
    healthy, reason = state.agent_health
    return msgspec.structs.replace(state.device, healthy=healthy, health_reason=reason)


def _ran(pod: PodState) -> bool:
    """Whether an adopted pod ran already by a placement of ours."""
    placed = pod.placement
    return pod.phase is Phase.ALLOCATED and placed is not None and placed.attempt > 0


def _as_placed(data: PodAdopted) -> PodPlaced:
    return PodPlaced(
        pod=data.pod,
        namespace=data.submitted.namespace,
        name=data.submitted.name,
        attempt=data.attempt,
        node=data.node,
        shares=data.shares,
        score=Score(node=data.node, total=0.0),
    )
