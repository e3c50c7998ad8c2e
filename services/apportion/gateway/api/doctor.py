"""`GET /api/v1/doctor`: what is wrong here and what to do, as far as the gateway can see.

Invariant: it answers also while the gateway folds, or cannot: that is when people ask. Many who ask
at once cost as much as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from msgspec import Struct

from apportion.core.doctor.checks import examined
from apportion.core.doctor.cluster import cluster_facts, models_of
from apportion.core.doctor.facts import Facts, FoldFacts, LedgerFacts, SchedulerFacts
from apportion.core.doctor.waiting import waiting_facts
from apportion.core.explain.doctor_answers import DoctorAnswer
from apportion.gateway.api.answering import json_response
from apportion.gateway.api.late_words import LateWords
from apportion.gateway.api.query import only
from apportion.gateway.feed import Feed
from apportion.gateway.prices import price_facts
from apportion.runtime.files.archives import archive_facts
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.examining import examine
from apportion.runtime.jetstream.monitoring import server_says
from apportion.runtime.ledger.attendance import Attendance
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.process.clock import Clock, rfc3339

FRESH_S = 2.0
"""So long an answer is given again."""


class Seen(Struct, frozen=True):
    """What the gateway was shown: the server's monitoring port, empty for none, and files."""

    monitor: str = ""
    archives: Path | None = None
    prices: Path | None = None


class Doctor:
    """The doctor of one gateway.

    `unready` returns why its fold is not up to now, `frozen` why the ledger takes nothing from this
    process; both return an empty string if there is no such cause.
    """

    def __init__(
        self,
        feed: Feed,
        ledger: JetStreamLedger,
        *,
        clock: Clock,
        unready: Callable[[], str],
        frozen: Callable[[], str],
        seen: Seen,
    ) -> None:
        self._feed = feed
        self._ledger = ledger
        self._clock = clock
        self._unready = unready
        self._seen = seen
        self._frozen_here = frozen
        self._schedulers = Attendance("scheduler", clock)
        self._intakes = Attendance("intake", clock)
        self._late_words = LateWords(ledger.wire)
        self._asking = asyncio.Lock()
        self._answer: DoctorAnswer | None = None
        self._answered_s = 0.0

    async def listen(self) -> None:
        """Hear who is there, from now on. Raises LedgerUnavailable, NotPermitted."""
        await self._schedulers.listen(self._ledger)
        await self._intakes.listen(self._ledger)

    def frozen(self) -> str:
        """Why no pod can be placed or started now: a key of `FREEZES`, or empty."""
        here = self._frozen_here() or self._schedulers.frozen()
        if here or self._schedulers.absent():
            return here or "no-scheduler"
        if self._intakes.absent():
            return "no-intake"
        nodes = [node for node in self._feed.state.nodes.values() if node.present]
        return "no-agent" if nodes and all(node.silent for node in nodes) else ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request; it has no parameters."""
        only(request.query, ())
        async with self._asking:
            now = self._clock.monotonic()
            if self._answer is None or now - self._answered_s > FRESH_S:
                self._answer, self._answered_s = await self._examined(), now
            return json_response(self._answer)

    async def _examined(self) -> DoctorAnswer:
        ledger: LedgerFacts | None = None
        problem = ""
        late: frozenset[int] = frozenset()
        said = await server_says(self._seen.monitor)
        try:
            ledger = await examine(self._ledger.wire, clock=self._clock, server_says=said)
            late = await self._late_words.among(tuple(self._feed.state.refused_events))
        except LedgerError as error:
            problem = str(error)
        state, archives, prices = self._feed.state, self._seen.archives, self._seen.prices
        newest = ledger.last_revision if ledger else state.revision
        facts = Facts(
            ledger=ledger,
            ledger_problem=problem,
            archives=archive_facts(archives, now=self._clock.now()) if archives else None,
            fold=FoldFacts(revision=state.revision, last_revision=newest, unready=self._unready()),
            cluster=cluster_facts(state, late=late),
            frozen=self.frozen(),
            waiting=waiting_facts(state, now=rfc3339(self._clock.now())),
            schedulers=SchedulerFacts(members=self._schedulers.members()),
            prices=await price_facts(prices, models_of(state)) if prices else None,
        )
        return DoctorAnswer(revision=state.revision, checks=examined(facts))
