"""`GET /api/v1/doctor`: faults of the installation that the gateway can see, each with its fix.

Invariant: the endpoint answers even while the gateway cannot fold the ledger. Concurrent requests
share one examination."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aiohttp import web

from apportion.core.answers.doctor import DoctorAnswer
from apportion.core.doctor.checks import examined
from apportion.core.doctor.cluster import (
    WORDS_OF_PLACES,
    came_late,
    cluster_facts,
    models_of,
    waiting_facts,
)
from apportion.core.doctor.facts import Facts, FoldFacts, LedgerFacts, PriceFacts, SchedulerFacts
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import RefusedEvent, State
from apportion.core.reports.prices import PriceError, lacking_words
from apportion.gateway.api.answering import json_response
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.past_client import Seen
from apportion.gateway.api.query import Query, parsed
from apportion.gateway.feed import Feed
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.examining import examine
from apportion.runtime.jetstream.reports import read_prices
from apportion.runtime.jetstream.server.embedded import server_says
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.archive import archive_facts
from apportion.runtime.ledger.membership import Attendance
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.process.clock import Clock, rfc3339
from apportion.runtime.process.logs import get_logger
from apportion_schemas import EventError, NodeReported, PodGone, decode
from apportion_schemas.catalogue import SUBJECTS, token

FRESH_S = 2.0  # how long an answer is reused

DOCTOR = Endpoint(
    path="doctor", name="doctor", answer=DoctorAnswer, query=Query, audience=Audience.DOCTOR,
    summary="The result of every check that the gateway can run, with its fix",
)  # fmt: skip
LATE_AT_ONCE = 32
_LATE_TYPES = frozenset(each.__name__ for each in WORDS_OF_PLACES)


class Doctor:
    """Examines one installation and keeps what it finds for the next request."""

    def __init__(
        self,
        feed: Feed,
        ledger: JetStreamLedger,
        *,
        clock: Clock,
        unready: Callable[[], str],  # the gateway's problem, or ""
        frozen: Callable[[], str],  # why no pod can be placed, or ""
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
        """Start to listen to schedulers and intakes. Raises LedgerUnavailable, NotPermitted."""
        await self._schedulers.listen(self._ledger)
        await self._intakes.listen(self._ledger)

    def frozen(self) -> str:
        """Return why no pod can be placed or started, as a key of `FREEZES`; empty if pods can."""
        here = self._frozen_here() or self._schedulers.frozen()
        if here or self._schedulers.absent():
            return here or "no-scheduler"
        if self._intakes.absent():
            return "no-intake"
        nodes = [node for node in self._feed.state.nodes.values() if node.present]
        return "no-agent" if nodes and all(node.silent for node in nodes) else ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer with the doctor's report, which is cached for `FRESH_S`."""
        parsed(DOCTOR.query, request.query)
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


class LateWords:
    """Finds events of agents and binders that were refused only because they came too late.

    Such an event contradicts the ledger but is no fault: an agent may hand out devices just as the
    pod ends. Invariant: each event is read once. An unreadable event does not count as late."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._late: dict[int, bool] = {}

    async def among(self, refused: Sequence[RefusedEvent]) -> frozenset[int]:
        """Return which of the `refused` events came too late. Raises LedgerUnavailable."""
        asked = [each.revision for each in refused if each.subject in _LATE_TYPES]
        self._late = {each: self._late[each] for each in asked if each in self._late}
        new = [each for each in asked if each not in self._late]
        for start in range(0, len(new), LATE_AT_ONCE):
            some = new[start : start + LATE_AT_ONCE]
            found = await asyncio.gather(*(self._came_late(each) for each in some))
            self._late.update(zip(some, found, strict=True))
        return frozenset(each for each, late in self._late.items() if late)

    async def _came_late(self, revision: int) -> bool:
        record = await stream.read_record(self._wire, revision)
        if record is None:
            return False
        try:
            said = decode(record.payload, subject=record.subject)
            subject = f"{SUBJECTS}.workload.{token(getattr(said.data, 'pod', ''))}"
            newest = await stream.read_stored(self._wire, {"last_by_subj": subject})
            if newest is None:
                return False
            last = decode(newest.data, subject=subject)
        except EventError:
            return False
        gone = newest.seq if isinstance(last.data, PodGone) else 0
        return came_late(said, revision, gone)


_log = get_logger(__name__)


async def price_facts(file: Path, models: Iterable[str]) -> PriceFacts:
    """Return the doctor's facts about the price file: which of `models` have no price now."""
    try:
        prices = await asyncio.to_thread(read_prices, file)
    except PriceError as error:
        return PriceFacts(file=str(file), problem=str(error))
    lacking = prices.lacking(models)
    return PriceFacts(file=str(file), problem=lacking_words(lacking) if lacking else "")


class PriceWatch:
    """Logs a warning once for each model without a price, before a report needs it."""

    def __init__(self, file: Path, state: State) -> None:
        self._file = file
        self._state = state
        self._known: set[str] = set()
        self._came = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Remember the device models of a node that has reported its devices."""
        if isinstance(change.data, NodeReported):
            self._came.set()

    async def run(self) -> None:
        """Check that each device model has a price, also new models, until cancelled."""
        while True:
            self._came.clear()
            new = set(models_of(self._state)) - self._known
            self._known |= new
            if new:
                facts = await price_facts(self._file, new)
                if facts.problem:
                    _log.warning("cost reports unavailable", prices=facts.file, error=facts.problem)
            await self._came.wait()
