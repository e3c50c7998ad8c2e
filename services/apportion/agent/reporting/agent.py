"""Report the devices of an agent's nodes, and answer each placement that is bound there.

The answer is SharesAllocated or AllocationFailed. Without a kubelet, the agent answers at once. On
a node with a kubelet, it answers when the first container with shares is about to start. An intake
judges and appends the events.

Invariants: every bound placement gets at most one answer, even across crashes. The agent appends
nothing while the inventory is unchanged. The id of an inventory event follows from its content and
the previous revision. So restarts, retries and a second agent write the same event once."""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from msgspec import structs

from apportion.agent.backend import DeviceBackend
from apportion.agent.reporting.view import Claim, FleetView, NodeView
from apportion.agent.simulated import SimulatedBackend, obey
from apportion.core.configuration.offering import MISCONFIGURED, closed, offered
from apportion.core.intake.answers import EXPECTED, SUBJECT, Answer, decode_answer
from apportion.core.intake.sight import ADOPTIONS, CHANNELS, FOR_ALL, subjects_of_node
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import State
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.membership import AGENT_BEAT_S, beat_of
from apportion.runtime.ledger.port import Draft, Ledger, LedgerUnavailable
from apportion.runtime.ledger.publisher import Insistence, Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.ledger.starting import command_subject
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Family, Metrics, Sample
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    Device,
    DeviceHealthChanged,
    Host,
    NodeReported,
    SharesAllocated,
)
from apportion_schemas.catalogue import SUBJECTS, untoken
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import Payload

ANSWER_S: Final = 10.0
UNDER_WAY_MAX: Final = 32  # requests at once per node; an intake keeps twice as many
_INVENTORY: Final = f"{SUBJECTS}.inventory."
SUBJECTS_MAX = 32  # with more, an agent follows whole channels and filters the events itself
OWN_IDS_KEPT = 256
# Interval at which a refused inventory is reported again. The cause may be fixed out of the node's
# sight: another node no longer has the device, or an intake now knows its model.
REPEAT_S = 60.0
# Interval at which the whole inventory is reported again. Usually the intake answers that it is
# known. But while the node was away, another node may have been believed to have its devices.
RESAY_S = 300.0
_HUNG = Family(
    "apportion_agent_driver_hung",
    "1 for each device with a hanging driver call.",
    ("node", "device"),
)
# Before the first beat: how often, and how far apart, to check that the kubelet knows us.
KNOWN_LOOKS, KNOWN_LOOK_S = 60, 0.5
# Time for pods to reach the kubelet that were bound before the binder knew that we stop.
LEAVE_S = 2.0

_log = logging.getLogger(__name__)


class HeldBack(Exception):
    """Error: the intake accepts this large change only if it is reported again later."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.again_s = answer.again_s


class IntakeClient:
    """Sends the events of all nodes of one agent to the intake."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._insistence = Insistence(self._ask, clock)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._refused: dict[str, str] = {}

    async def append(self, draft: Draft) -> Appended:
        """Send a draft and return the intake's answer: a revision if it was appended, or a refusal.

        Raises HeldBack if the change must be reported again, NotPermitted for another node."""
        return await self._insistence.append(draft)

    def not_ready(self) -> list[str]:
        """Return the nodes whose inventory the intake refuses, with the reason."""
        return [f"the intake rejects the report of {node}: {why}" for node, why in
                sorted(self._refused.items())]  # fmt: skip

    async def _ask(self, draft: Draft) -> Appended:
        token = draft.subject.rpartition(".")[2]
        turn = self._turns.setdefault(token, asyncio.Semaphore(UNDER_WAY_MAX))
        async with turn:
            reply = await self._ledger.request(f"{SUBJECT}.{token}", draft.payload, ANSWER_S)
        try:
            answer = decode_answer(reply)
        except msgspec.DecodeError as error:
            raise LedgerUnavailable(f"cannot read the intake's answer: {error}") from None
        if answer.held:
            _log.warning("the intake accepts this only if it is reported again: %s", answer.why)
            raise HeldBack(answer)
        if answer.again_s:
            raise LedgerUnavailable(
                f"the intake accepts no events now: {answer.why}", again_s=answer.again_s
            )
        self._note(draft, untoken(token), answer)
        return Appended(answer.revision, already_there=answer.duplicate)

    def _note(self, draft: Draft, node: str, answer: Answer) -> None:
        inventory = draft.subject.startswith(_INVENTORY)
        if not answer.refused:
            if inventory:
                self._refused.pop(node, None)
            return
        said = f"{answer.refused}: {answer.why}"
        if answer.refused in EXPECTED:
            _log.info("event %s skipped: %s", draft.id, said)
            return
        if self._refused.get(node) != said:  # otherwise it was logged a minute ago
            _log.error("the intake rejects %s of node %s: %s", draft.id, node, said)
        if inventory:
            self._refused[node] = said


@dataclass(slots=True, eq=False)
class Node:
    """One node of this agent, with the devices that its backend reported last."""

    name: str
    backend: DeviceBackend
    host: Host
    publisher: Publisher
    closed: tuple[tuple[tuple[Mode, ...], str], ...] = ()  # modes that it cannot hand out, and why
    # Devices to report as unhealthy, with the reason, though their driver calls them healthy.
    failed: dict[str, str] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    report: NodeReported | None = None
    # Ids of our inventory events.
    written: deque[str] = field(default_factory=lambda: deque(maxlen=OWN_IDS_KEPT))
    reporting: asyncio.Lock = field(default_factory=asyncio.Lock)
    overtaken: asyncio.Event = field(default_factory=asyncio.Event)
    # Set while an intake refuses the last inventory event.
    refused: asyncio.Event = field(default_factory=asyncio.Event)


def subjects(nodes: Sequence[str]) -> list[str]:
    """Return the ledger subjects that the agent of these nodes follows."""
    if len(nodes) * (len(CHANNELS) + 1) > SUBJECTS_MAX:
        channels = (f"{SUBJECTS}.{channel}.*" for channel in CHANNELS)
        return [*FOR_ALL, *channels, f"{SUBJECTS}.{ADOPTIONS}.>"]
    return [*FOR_ALL, *(subject for node in nodes for subject in subjects_of_node(node))]


class Agent:
    """The agent of a set of nodes: one real node, or a simulated fleet."""

    def __init__(
        self,
        nodes: Sequence[Node],
        ledger: Ledger,
        metrics: Metrics,
        *,
        state: State | None = None,
        rules: Rules | None = None,
        remember: bool = False,
        kubelet: bool = False,
    ) -> None:
        """Fold the ledger by `rules`, from the snapshot `state` if the ledger was trimmed.

        `remember`: keep claims (bound placements) after they are answered. `kubelet`: the kubelet's
        plugins answer the claims that have devices. The agent answers only the others."""
        self._nodes = {node.name: node for node in nodes}
        self._ledger = ledger
        self._kubelet = kubelet
        self._view = FleetView(self._nodes, remember=remember, rules=rules)
        after = 0
        if state is not None:
            self._view.begin(state)
            after = state.revision
        self._reader = Reader(
            ledger,
            self._view,
            metrics=metrics,
            subjects=subjects(list(self._nodes)),
            on_change=self._noticed,
            after=after, writes="agent",
        )  # fmt: skip
        self._reported = asyncio.Event()
        self._looks = 0
        self._looked = asyncio.Condition()
        self._unreported = len(nodes)
        self._obedient = False
        self._leaves = False
        self._begun = 0
        self._allocations = metrics.counter(
            "apportion_allocations_total",
            "Containers' device allocations by outcome: allocated, failed or refused.",
            ("outcome",),
        )
        self._contradictions = metrics.counter(
            "apportion_agent_contradictions_total",
            "Reports that another agent sent about this agent's node. Give every agent a --node of "
            "its own.",
        )
        metrics.looked_up([_HUNG], self._hung)

    def not_ready(self) -> list[str]:
        """Return why the agent is not ready, such as unreported nodes or hanging driver calls."""
        reasons = self._reader.not_ready()
        if self._unreported:
            reasons += [f"{self._unreported} of {len(self._nodes)} nodes not reported yet"]
        elif not self._obedient:
            reasons += ["not ready for commands yet"]
        return reasons + [
            f"{device}: a driver call on node {node} hangs" for _, (node, device), _ in self._hung()
        ]

    def _hung(self) -> Iterator[Sample]:
        for node in self._nodes.values():
            for device in node.backend.hung():
                yield _HUNG, (node.name, device), 1.0

    async def fold(self) -> None:
        """Follow the ledger until cancelled. Raises the errors of `Reader.run`."""
        await self._reader.run()

    async def watch(self) -> None:
        """Report every node now and after changes. Raises DevicesUnavailable if reading fails."""
        await self._reader.caught_up()
        self._begun = self._reader.revision
        async with asyncio.TaskGroup() as group:
            for node in self._nodes.values():
                group.create_task(self._watch(node), name=f"report {node.name}")

            async def report_all() -> None:
                await self._reported.wait()
                await asyncio.gather(*map(self.report, self._nodes.values()))

            again = _after(partial(_taken, self._view.configured), report_all)
            group.create_task(again, name="report as configured")

    async def allocate(self) -> None:
        """Answer bound placements until cancelled. On a lost node, wait until the node returns."""
        await self._reported.wait()
        async with asyncio.TaskGroup() as later:
            while True:
                await self._view.became_due.wait()
                due = self._view.take_due()
                now: list[Claim] = []
                for claim in due:
                    if self._kubelet and claim.devices:
                        continue
                    if self.lost(claim.node):
                        later.create_task(self._answer_late(claim))
                    else:
                        now.append(claim)
                await asyncio.gather(*(self._answer_unasked(claim) for claim in now))

    async def take_orders(self) -> None:
        """Serve failure and recovery commands to the simulated nodes. Real nodes accept none."""
        await self._reported.wait()
        for node in self._nodes.values():
            if isinstance(node.backend, SimulatedBackend):
                await self._ledger.serve(command_subject(node.name), obey(node.backend))
        self._obedient = True

    async def beat(self, clock: Clock, *, waits: Callable[[], object] = lambda: False) -> None:
        """Send heartbeats until cancelled or until `leave`, except while the reader is halted.

        Pods are bound only after the first heartbeat, which is delayed while `waits` is true."""
        await self._reported.wait()
        for _ in range(KNOWN_LOOKS):
            if not waits():
                break
            await clock.pause(KNOWN_LOOK_S)
        while not self._leaves:
            beats = [beat_of(name) for name in self._nodes if not self.lost(name)]
            if not self._reader.halted:
                with contextlib.suppress(LedgerUnavailable):  # no one would receive them
                    for subject, payload in beats:
                        await self._ledger.publish(subject, payload)
            await clock.pause(AGENT_BEAT_S)

    async def leave(self, clock: Clock) -> None:
        """Report that the agent will stop, then allow bound pods time to get their shares."""
        self._leaves = True
        with contextlib.suppress(LedgerUnavailable):
            for name in self._nodes:
                await self._ledger.publish(*beat_of(name, leaves=True))
        await clock.pause(LEAVE_S)

    def lost(self, node: str) -> bool:
        """Return True while a simulated node is lost by a user's command."""
        backend = self._nodes[node].backend
        return isinstance(backend, SimulatedBackend) and not backend.there.is_set()

    async def _watch(self, node: Node) -> None:
        said = self._view.nodes[node.name].said
        if said is not None and isinstance(node.backend, SimulatedBackend):
            ill = (d for d in said.devices if not d.health_reason.startswith(MISCONFIGURED))
            node.backend.restore(ill)
        await self.report(node)
        self._unreported -= 1
        if self._unreported == 0:
            self._reported.set()

        async def repeat_report() -> None:
            if self._view.nodes[node.name].said == node.report:  # else another agent uses its name
                await self.report(node, whole=True)

        report = partial(self.report, node)
        async with asyncio.TaskGroup() as group:
            group.create_task(_after(node.backend.changed, report))
            group.create_task(_after(partial(_taken, node.overtaken), report))
            group.create_task(_after(partial(_taken, node.refused, pause_s=REPEAT_S), report))
            group.create_task(_after(partial(asyncio.sleep, RESAY_S), repeat_report))

    async def report(self, node: Node, *, whole: bool = False) -> None:
        """Report the node's devices if they changed. With `whole`, report them in any case."""
        async with node.reporting:
            while True:
                try:
                    await self._report_alone(node, whole=whole)
                except HeldBack as held:  # it may have been a glitch: read again
                    await asyncio.sleep(held.again_s)
                else:
                    return

    async def _report_alone(self, node: Node, *, whole: bool) -> None:
        devices = offered(
            await node.backend.inventory(),
            node.name,
            self._view.configuration,
            switchable=node.backend.simulated,
        )
        for modes, reason in node.closed:
            devices = closed(devices, modes, reason)
        node.devices = {device.id: device for device in devices}
        node.report = NodeReported(
            node=node.name,
            devices=tuple(
                structs.replace(device, healthy=False, health_reason=node.failed[device.id])
                if device.healthy and device.id in node.failed
                else device
                for device in devices
            ),
            host=node.host,
            driver=node.backend.driver,
            simulated=node.backend.simulated,
        )
        view = self._view.nodes[node.name]
        follows = view.said_revision
        for data in news(view, node.report) or ([node.report] if whole else []):
            identity = event_id(data, follows)
            node.written.append(identity)
            appended = await node.publisher.publish(
                data, event_id=identity, basis=self._reader.revision
            )
            if appended.revision is not None:
                await self._reader.reached(appended.revision)
            elif not appended.already_there:
                node.refused.set()
        self._looks += 1
        async with self._looked:
            self._looked.notify_all()

    def _noticed(self, node_name: str) -> None:
        """Check the newest inventory event of one of our nodes, right after it was folded.

        Two agents with the same node name would overwrite each other for ever. So if another agent
        reported the node, this agent only logs an error. If the report was sent before this process
        started (its basis is not newer than our first revision), this agent reports again."""
        node = self._nodes.get(node_name)
        if node is None or node.report is None:
            return
        view = self._view.nodes[node_name]
        ours = view.said_id in node.written or view.said == node.report
        if view.refused:
            node.refused.set()
        elif not ours and view.said_basis <= self._begun:
            node.overtaken.set()
        elif not ours:
            self._contradictions.inc()
            _log.error(
                "revision %d: another agent reports different devices for node %s; "
                "give every agent a --node of its own",
                view.said_revision,
                node_name,
            )

    async def reported(self, times: int) -> int:
        """Wait until the agent has made at least `times` reports in total; return their number."""
        async with self._looked:
            await self._looked.wait_for(lambda: self._looks >= times)
        return self._looks

    def view_of(self, node: str) -> NodeView:
        """Return the ledger's view of one of the agent's nodes."""
        return self._view.nodes[node]

    @property
    def revision(self) -> int:
        """Return the revision up to which the agent has read the ledger."""
        return self._reader.revision

    @property
    def configuration(self) -> Configuration:
        """Return the newest configuration in the ledger."""
        return self._view.configuration

    async def _answer_unasked(self, claim: Claim) -> None:
        node = self._nodes[claim.node]
        # One id for both answers: the first is kept, whatever the devices' later state.
        await self._answer(claim, trouble_of(node.name, node.devices, claim), claim.key)

    async def _answer_late(self, claim: Claim) -> None:
        backend = self._nodes[claim.node].backend
        if isinstance(backend, SimulatedBackend):
            await backend.there.wait()
        # The pod may have been placed elsewhere, or released, while the node was lost.
        if (claim.pod, claim.attempt) in self._view.nodes[claim.node].bound:
            await self._answer_unasked(claim)

    async def answer(self, claim: Claim, trouble: str) -> bool:
        """Append SharesAllocated, or AllocationFailed if `trouble` has the reason of a failure.

        Return True if the ledger has an answer, and False if the claim was voided. If the kubelet
        retries, no second answer is appended. An allocated pod stays allocated."""
        if self._view.nodes[claim.node].answers.get(claim.pod) in ("", trouble):
            return True
        digest = hashlib.sha256(trouble.encode()).hexdigest()[:16] if trouble else ""
        return await self._answer(claim, trouble, f"{claim.key}/{digest}" if digest else claim.key)

    async def _answer(self, claim: Claim, trouble: str, identity: str) -> bool:
        node = self._nodes[claim.node]
        data: SharesAllocated | AllocationFailed
        if trouble:
            data = AllocationFailed(
                pod=claim.pod, node=claim.node, attempt=claim.attempt, message=trouble
            )
        else:
            data = SharesAllocated(
                pod=claim.pod, node=claim.node, attempt=claim.attempt, devices=claim.devices
            )
        appended = await node.publisher.publish(
            data, event_id=identity, basis=self._reader.revision, cause=claim.bound_revision
        )
        taken = appended.already_there or appended.revision is not None
        outcome = "failed" if trouble else "allocated"
        self._allocations.labels(outcome if taken else "refused").inc()
        return taken


async def _after(
    wait: Callable[[], Awaitable[object]], report: Callable[[], Awaitable[None]]
) -> None:
    while True:
        await wait()
        await report()


async def _taken(event: asyncio.Event, *, pause_s: float = 0.0) -> None:
    await event.wait()
    await asyncio.sleep(pause_s)
    event.clear()


def trouble_of(node: str, devices: Mapping[str, Device], claim: Claim) -> str:
    """Return why the node cannot hand out the devices of a claim; empty if it can."""
    for device_id in claim.devices:
        device = devices.get(device_id)
        if device is None:
            return f"device {device_id} is not on node {node}"
        if not device.healthy:
            return f"device {device_id} is unhealthy: {device.health_reason}"
    return ""


_encode = msgspec.json.Encoder(order="sorted").encode


def news(view: NodeView, now: NodeReported) -> list[Payload]:
    """Return the events that report devices `now`: only health changes if possible, else all."""
    said = view.said
    if said == now and not view.refused:
        return []
    if view.refused or said is None or _as_if_well(said) != _as_if_well(now):
        return [now]
    return [
        DeviceHealthChanged(
            node=now.node, device=device.id, healthy=device.healthy, reason=device.health_reason
        )
        for device, before in zip(now.devices, said.devices, strict=True)
        if device != before
    ]


def event_id(data: Payload, follows: int) -> str:
    """Return the id of an inventory event; `follows` is the previous revision on its subject."""
    digest = hashlib.sha256(_encode(data)).hexdigest()[:32]
    return f"{type(data).__name__}/{follows}/{digest}"


def _as_if_well(report: NodeReported) -> NodeReported:
    return msgspec.structs.replace(
        report,
        devices=tuple(
            msgspec.structs.replace(d, healthy=True, health_reason="") for d in report.devices
        ),
    )
