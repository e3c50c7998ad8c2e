"""Records in the ledger which agents stop sending beats (heartbeats), and which resume.

    beats ──► last heard, by node ──► silent for the grace ──► NodeSilent, fenced
                                 └──► a silent one is heard ──► NodeHeard, fenced
    an agent's last beat, before it stops ──────────────────────► NodeSilent, fenced, at once

All schedulers listen. Invariants: if several schedulers append at once, the ledger stores one
event, because each append expects the node's last event. The grace passes only while this process
runs and the server answers, so no agent counts as silent because of their failure. A node that no
agent has reported gets no such events."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import NodeState, State
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.membership import AGENT_BEAT_S, AGENTS, read_beat
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    FenceRefused,
    Ledger,
    LedgerFull,
    LedgerUnavailable,
    NotPermitted,
    OutcomeUnknown,
)
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import NodeHeard, NodeSilent, subject_of

GRACE_S = 40  # as Kubernetes' `node-monitor-grace-period` in most releases
LEAVES_S = 1  # the `grace_s` of an agent that announced its stop, for which nothing was waited
# More than two beats: a beat counts from the start of its round, so two whole rounds may be counted
# between beats that are in time.
GRACE_MIN_S = 13

_log = logging.getLogger(__name__)


class Presence:
    """Tracks live agents. Only the scheduler whose `leads` returns True appends silence events."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        *,
        clock: Clock,
        publisher: Publisher,
        metrics: Metrics,
        leads: Callable[[], bool],
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._clock = clock
        self._publisher = publisher
        self._leads = leads
        self._grace_s = GRACE_S
        self._fences = Fences()
        self._heard: dict[str, float] = {}
        self._counted_s = 0.0
        self._since_s = 0.0
        self._changed: dict[str, bool] = {}
        self._some_changed = asyncio.Event()
        self._telling = asyncio.Lock()
        metrics.gauge(
            "apportion_silent_nodes", "Number of nodes whose agent is not reporting."
        ).set_function(lambda: sum(bool(node.silent) for node in state.nodes.values()))

    async def run(self, reader: Reader[Change], *, grace_s: int = GRACE_S) -> None:
        """Record each agent that sends no heartbeat for `grace_s`, and each that returns.

        Without permission to read heartbeats, log a warning and record nothing."""
        self._grace_s = grace_s
        await reader.caught_up()
        try:
            await self._ledger.serve(AGENTS, self._note)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._count(reader), name="agents that stopped reporting")
                group.create_task(self._follow(reader), name="agents that leave or return")
        except* NotPermitted as errors:
            _log.warning("not watching for agents that stop reporting: %s", errors.exceptions[0])

    async def _note(self, subject: str, payload: bytes) -> None:
        try:
            name, leaves = read_beat(subject, payload)
        except (msgspec.DecodeError, ValueError) as error:
            _log.warning("ignored a heartbeat on %s: %s", subject, error)
            return
        node = self._state.nodes.get(name)
        if node is None:
            return
        self._heard[name] = self._counted_s
        if leaves or node.silent or self._changed.get(name):
            self._changed[name] = leaves
            self._some_changed.set()

    async def _count(self, reader: Reader[Change]) -> None:
        """Look for silent agents after each heartbeat interval.

        If this process was stopped, at most one interval counts as silence."""
        before = self._clock.monotonic()
        while True:
            await self._clock.pause(AGENT_BEAT_S)
            now = self._clock.monotonic()
            self._counted_s += min(now - before, AGENT_BEAT_S)
            before = now
            try:
                await reader.reached(await self._ledger.last_revision())
            except LedgerUnavailable:
                self._since_s = self._counted_s  # beats could not arrive either
                continue
            if self._leads():
                # Reported nodes without a beat in the grace period.
                latest = self._counted_s - self._grace_s
                silent = [
                    node
                    for name, node in self._state.nodes.items()
                    if not node.silent
                    and node.present
                    and node.reported is not None
                    and max(self._heard.get(name, 0.0), self._since_s) <= latest
                ]
                await self._tell(reader, silent, self._grace_s)

    async def _follow(self, reader: Reader[Change]) -> None:
        """Record agents that announce their stop, and silent agents that send beats again."""
        while True:
            await self._some_changed.wait()
            self._some_changed.clear()
            changed, self._changed = sorted(self._changed.items()), {}
            nodes = (
                node
                for name, leaves in changed
                if (node := self._state.nodes.get(name)) is not None
                and bool(node.silent) is not leaves
            )
            if self._leads():
                await self._tell(reader, list(nodes), LEAVES_S)

    async def _tell(self, reader: Reader[Change], nodes: Iterable[NodeState], grace_s: int) -> None:
        """Append NodeSilent for each node, or NodeHeard if the node was silent."""
        found = [(node, bool(node.silent)) for node in nodes]
        async with self._telling:
            for node, was_silent in found:
                if bool(node.silent) is not was_silent:
                    continue  # changed while waiting for the lock
                name, basis = node.name, self._state.revision
                data: NodeSilent | NodeHeard = NodeSilent(node=name, grace_s=grace_s)
                word = "silent"
                if was_silent:
                    data, word = NodeHeard(node=name), "heard"
                event_id = f"{name}/{word}/{node.presence}"
                draft = self._publisher.draft(data, event_id=event_id, basis=basis)
                subject = "" if node.presence else subject_of(data)
                try:
                    expect = self._fences.expected(node.presence, folded=basis, subject=subject)
                    (revision,) = await self._ledger.append([structs.replace(draft, expect=expect)])
                    _log.info("the agent of node %s is %s", name, word)
                    await reader.reached(revision)
                except FenceRefused as refusal:
                    await self._fences.refused(refusal, self._ledger)
                except DuplicateRefused:
                    continue
                except (OutcomeUnknown, LedgerUnavailable, LedgerFull) as trouble:
                    _log.warning("the state of agents may be missing from the ledger: %s", trouble)
                    return
