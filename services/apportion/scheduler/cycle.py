"""The scheduling cycle: wait, decide, append, fold, again.

    wake ──► decide ──► fence ──► append ──┬─ taken ──────────► fold up to it ──► decide …
                                          └─ refused, unknown ► fold up to now ─► retry …

Each scheduler decides for its shard of the pods. The first placement of a batch on a node expects
the revision of the previous message on that node (`Nats-Expected-Last-Subject-Sequence`). The
server refuses the batch if the node has a newer message. Each placement also contains the SHA-256
of the previous message on its node.

Invariants: only one decision is in progress. After an append, accepted or not, the scheduler folds
up to the outcome before it decides again. A decision that a fence refused is retried with half as
many pods. After `REFUSALS_MAX` refusals in a row, the derived data is rebuilt."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import structs

from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.fold import Change
from apportion.core.ledger.handlers.departures import RESERVATION
from apportion.core.ledger.handlers.idle import reclaims
from apportion.core.ledger.state import State
from apportion.core.placement.engine import EVENTS_MAX, Decision, DecisionEvent, Engine
from apportion.core.placement.fit_query import ExternalChoices
from apportion.core.placement.queueing.hints import BY_EVENT
from apportion.core.placement.queueing.shape_queue import is_pending
from apportion.core.placement.queueing.sharding import shard
from apportion.runtime.ledger.batching import FEW_DRAFTS
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import (
    Draft,
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
from apportion.runtime.ledger.starting import SUBJECT, Choice, Heard
from apportion.runtime.process.clock import BackOff, Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    BudgetGone,
    BudgetObserved,
    LimitsChecked,
    NodesReserved,
    PlacementVoided,
    PodEvicted,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    ResizeAsked,
    ResizeRefused,
    UsageRecorded,
    subject_of,
)
from apportion_schemas.decoding import from_outside

BACK_OFF = BackOff(0.02, 5.0)
REFUSALS_MAX = 10  # in a row: the last was about a single pod, after several seconds
FENCES_FOR_EACH = 8  # at most so many events for each choice of kube-scheduler
TAKEN, REFUSED, UNKNOWN = "taken", "refused", "unknown"
# Events after which a pending pod may evict idle pods.
_OF_IDLE = frozenset((UsageRecorded, BudgetObserved, BudgetGone))
# Events after which there may be something to decide: a pending pod may fit now, a pod is new, or
# a failed placement must be voided.
_STIRS = frozenset((*BY_EVENT, PodSubmitted, BindFailed, AllocationFailed, ResizeAsked))

_log = logging.getLogger(__name__)


class DecisionsRefused(Exception):
    """Raised if fences refused too many decisions in a row, although the fold was up to date."""


class DecisionMetrics:
    """Prometheus metrics of one scheduler's decisions and their outcomes."""

    def __init__(self, metrics: Metrics, engine: Engine) -> None:
        metrics.gauge("apportion_pending_pods", "Pending pods.").set_function(
            lambda: engine.pending
        )
        self.decision_seconds = metrics.histogram(
            "apportion_decision_seconds", "Time to decide one batch of pods."
        )
        self.placements = metrics.counter("apportion_placements_total", "Pods placed.")
        self.evictions = metrics.counter(
            "apportion_evictions_total", "Pods evicted for pods of higher priority."
        )
        self.refusals = metrics.counter(
            "apportion_refusals_total", "Pods that no node fits, by refusal code.", ("code",)
        )
        self._decisions = metrics.counter(
            "apportion_decisions_total",
            "Decisions by outcome: taken (stored), refused (the state had changed), or unknown "
            "(no answer from the ledger).",
            ("outcome",),
        )
        self._again = metrics.counter(
            "apportion_decided_again_total",
            "Pods that need another decision because the previous one was not stored.",
        )

    def lost(self, outcome: str, *, placed: int, again: int) -> None:
        """Count a decision that was not stored as a whole; `outcome` is `refused` or `unknown`.

        `placed` of its pods were placed nevertheless, and `again` of them need another decision."""
        self._decisions.labels(outcome).inc()
        self.placements.inc(placed)
        self._again.inc(again)

    def note(self, decision: Decision, seconds: float) -> None:
        """Count a decision that the ledger has stored."""
        self._decisions.labels("taken").inc()
        self.decision_seconds.observe(seconds)
        self.placements.inc(len(decision.placed))
        if not (decision.placed or decision.reported):
            self.evictions.inc(sum(isinstance(event, PodEvicted) for event in decision.events))
        for event in decision.events if decision.reported else ():
            if isinstance(event, PodRefused):
                for code in event.reasons:
                    self.refusals.labels(code.value).inc()


# Schedulers that all choose the best node refuse each other's decisions; one that keeps to its own
# nodes packs a little worse. So a scheduler tries its own nodes first only while pods are pending
# for others too, or a fence has refused it, and for CALM_DECISIONS decisions after that.
#
# Invariant: this follows from the folded state and the outcome of its own decisions, without a
# clock; a single scheduler is never apart.

CALM_DECISIONS: Final = 8


class Contention:
    """One scheduler's estimate of whether other schedulers place pods at the same time."""

    def __init__(self) -> None:
        self._calm = CALM_DECISIONS

    @property
    def apart(self) -> bool:
        """Return True if this scheduler should try its own part of the nodes first."""
        return self._calm < CALM_DECISIONS

    def look(self, *, others_wait: bool) -> None:
        """Update before each decision. `others_wait` says if other schedulers have pending pods."""
        self._calm = 0 if others_wait else self._calm + 1

    def refused(self) -> None:
        """Record that a fence refused a decision."""
        self._calm = 0


class Cycle:
    """One scheduler's loop: it folds the ledger and places the pending pods."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        *,
        clock: Clock,
        publisher: Publisher,
        sound: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._sound = sound
        self._clock = clock
        self._publisher = publisher
        self._stirred = asyncio.Event()
        self._failures = 0
        self._refusals = 0
        self._contention = Contention()
        self._fences = Fences()
        self.engine = Engine(state, now=_micros(clock))
        self._chosen = ExternalChoices(state, self.engine.columns)

    def share(self, member: str, members: Sequence[str]) -> None:
        """Choose this scheduler's shard of the pods; `members` are all schedulers."""
        self.engine.own(shard(member, members))
        self._stirred.set()

    def observe(self, change: Change) -> None:
        """Update after a change of the fold. Register this method with the reader."""
        self.engine.observe(change)
        self._chosen.observe(change)
        kind = type(change.data)
        # These events may show that a pod is idle and that a pending pod may evict it.
        idle = kind in _OF_IDLE and reclaims(self._state)
        if change.refused or idle or kind in _STIRS:
            self._stirred.set()

    async def run(
        self,
        reader: Reader[Change],
        metrics: DecisionMetrics,
        joined: Callable[[], Awaitable[None]],
    ) -> None:
        """Decide until cancelled, whenever pods or events need a decision.

        `joined` is awaited before the first decision. Raises DecisionsRefused if the fences refuse
        too many decisions; the process must then restart, which rebuilds its state."""
        await _serve_choices(self._ledger, self._chosen, self._stirred.set)
        await joined()
        await reader.caught_up()
        while True:
            await self._sound()
            self._stirred.clear()
            started = self._clock.monotonic()
            decision = self._decide(max(EVENTS_MAX >> self._refusals, 1))
            if not decision.events:
                if decision.more:
                    await asyncio.sleep(0)  # let other tasks run, such as the reader
                else:
                    await self._wait()
                continue
            seconds = self._clock.monotonic() - started
            outcome = await self._append(decision, reader)
            if outcome == TAKEN:
                metrics.note(decision, seconds)
            else:
                again = sum(is_pending(self._state, pod) for pod in decision.placed)
                metrics.lost(outcome, placed=len(decision.placed) - again, again=again)

    async def _wait(self) -> None:
        """Wait for an event that needs a decision, or until a pod's backoff has ended."""
        due = self.engine.held_until
        if not due:
            await self._stirred.wait()
            return
        left_s = (due - _micros(self._clock)) / 1_000_000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0)):
                await self._stirred.wait()

    def _decide(self, events_max: int) -> Decision:
        """Return the next decision. Pods whose node kube-scheduler chose come first."""
        if self.engine.needs_time:
            self.engine.tell_time(_micros(self._clock))
        if not self._chosen.prepare():
            return Decision(more=True)
        most = max(events_max // FENCES_FOR_EACH, 1) if self.engine.limited else events_max
        chosen = self._chosen.decide(self.engine.owns, events_max=most)
        if chosen:
            decision = Decision(events=[event for _, event in chosen])
            for pod, event in chosen:
                (decision.placed if isinstance(event, PodPlaced) else decision.reported).append(pod)
            self.engine.fence(decision, decision.placed)
            return decision
        self._contention.look(others_wait=self.engine.others_wait)
        self.engine.keep_apart(apart=self._contention.apart)
        return self.engine.decide(events_max=events_max)

    async def _append(self, decision: Decision, reader: Reader[Change]) -> str:
        drafts = fence(
            (*decision.events, *decision.fences), self._state, self._publisher, self._fences
        )
        outcome = UNKNOWN
        # Placements of a gang or within limits, and evictions, are stored all or none.
        together = bool(decision.fences) or (
            any(pod.submitted.group for pod in decision.placed)
            if decision.placed
            else any(isinstance(event, PodEvicted) for event in decision.events)
        )
        try:
            revision = await commit(self._ledger, drafts, together=together)
        except (FenceRefused, DuplicateRefused) as refusal:
            _log.info("decision refused, deciding again: %s", refusal)
            outcome = REFUSED
            if isinstance(refusal, FenceRefused):
                await self._fences.refused(refusal, self._ledger)
            self._contention.refused()
            self._refusals += 1
            if self._refusals > REFUSALS_MAX:
                raise DecisionsRefused(
                    f"decisions refused {self._refusals} times in a row: {refusal}"
                ) from refusal
        except (OutcomeUnknown, LedgerUnavailable, LedgerFull) as trouble:
            _log.warning("outcome of the decision unknown, reading the ledger: %s", trouble)
            await self._pause()
        else:
            self._failures = self._refusals = 0
            await reader.reached(revision)
            return TAKEN
        await reader.reached(await self._newest())
        self.engine.retry(decision)
        if self._failures:
            await self._pause()
        self._failures += 1
        return outcome

    async def _newest(self) -> int:
        while True:
            try:
                return await self._ledger.last_revision()
            except LedgerUnavailable:
                await self._pause()

    async def _pause(self) -> None:
        # The first retry of an append is made without a pause.
        await self._clock.pause(BACK_OFF.after(1 + self._failures))


def _micros(clock: Clock) -> int:
    return math.ceil(clock.now().timestamp() * 1_000_000)


# A batch costs the server files of its own (see `runtime.ledger.batching`), so few drafts are
# appended one by one, which is faster. If that fails halfway, the stored drafts are a valid
# decision on the same state. Invariant: each append on a node expects the previous one there, so no
# other placement can come in between.


async def commit(ledger: Ledger, drafts: Sequence[Draft], *, together: bool) -> int:
    """Append the drafts of one decision in order; return the revision of the last draft.

    If `together` is false, a few drafts are appended one by one, and some may be stored before an
    error. Raises the errors of `Ledger.append`."""
    if together or len(drafts) > FEW_DRAFTS:
        return (await ledger.append(drafts))[-1]
    newest: dict[str, int] = {}
    revision = 0
    for draft in drafts:
        expected = newest.get(draft.subject, draft.expect)
        (revision,) = await ledger.append([structs.replace(draft, expect=expected)])
        if expected is not None:
            newest[draft.subject] = revision
    return revision


# The extender sends kube-scheduler's choices of nodes to all schedulers; the one with the pod's
# shard decides. The answer only confirms receipt: the outcome is in the ledger, as PodPlaced or
# PodRefused. Invariant: an unreadable choice changes nothing and is answered with an error.

_read_choice = from_outside(msgspec.json.Decoder(Choice).decode)
_write_heard = msgspec.json.Encoder().encode


async def _serve_choices(ledger: Ledger, chosen: ExternalChoices, stir: Callable[[], None]) -> None:
    """Receive kube-scheduler's choices of nodes from now on, and call `stir` for each choice."""

    async def take(_subject: str, payload: bytes) -> bytes:
        try:
            choice = _read_choice(payload)
        except msgspec.MsgspecError as error:
            return _write_heard(Heard(error=f"kube-scheduler's choice cannot be read: {error}"))
        chosen.choose(choice.pod, choice.node)
        stir()
        return _write_heard(Heard())

    try:
        await ledger.serve(SUBJECT, take)
    except NotPermitted as error:
        _log.warning("not placing pods of extended kube-schedulers: %s", error)


def fence(
    events: Iterable[DecisionEvent | LimitsChecked],
    state: State,
    publisher: Publisher,
    fences: Fences,
) -> list[Draft]:
    """Return a fenced and chained draft for each event of one decision, in order."""
    chains: dict[str, str] = {}
    drafts, time = [], publisher.time()

    def draft(event: DecisionEvent | LimitsChecked, expect: int | None = None) -> Draft:
        if isinstance(event, PodResized | ResizeRefused):
            cause = event.asked
        elif isinstance(event, LimitsChecked):
            cause = 0
        elif isinstance(event, NodesReserved):
            cause = state.pods[event.pod].submitted_revision if event.pod else 0
        else:
            cause = state.pods[event.pod].submitted_revision
        return publisher.draft(
            event,
            event_id=_id(event, state),
            basis=state.revision,
            cause=cause,
            expect=expect,
            time=time,
        )

    for event in events:
        if isinstance(event, LimitsChecked | NodesReserved):
            newest = state.limits_checked.get(
                RESERVATION if isinstance(event, NodesReserved) else f"{event.kind}/{event.name}", 0
            )
            expect = fences.expected(newest, folded=state.revision, subject=subject_of(event))
            drafts.append(draft(event, expect))
            continue
        if isinstance(event, PodRefused | ResizeRefused):
            drafts.append(draft(event))
            continue
        node = state.nodes[event.node]
        known = node.name in chains
        subject = "" if node.fence else subject_of(event)
        expect = fences.expected(node.fence, folded=state.revision, subject=subject)
        if isinstance(event, PodPlaced):
            submitted = state.pods[event.pod].submitted
            devices = (held.device for held in node.devices)
            event = handed(event, submitted, devices)  # noqa: PLW2901
        chained = structs.replace(event, previous=chains.get(node.name, node.chain))
        drafts.append(draft(chained, None if known else expect))
        chains[node.name] = sha256(drafts[-1].payload).hexdigest()
    return drafts


def _id(event: DecisionEvent | LimitsChecked, state: State) -> str:
    """Return the event's message id. The ledger accepts each id once.

    So each attempt of a pod is placed at most once. For an adopted pod, the ids of evictions and
    voids include the revision at which it was submitted, because a pod can be adopted again with
    the same attempt number. The id of an eviction also names the pod that gets the room."""
    if isinstance(event, LimitsChecked):
        return f"limits/{event.kind}/{event.name}/{state.revision}"
    if isinstance(event, NodesReserved):
        return f"reserved/{event.name}/{state.revision}"
    pod = state.pods[event.pod]
    again = f"/{pod.submitted_revision}" if pod.adopted else ""
    match event:
        case PodPlaced():
            return f"{event.pod}/{event.attempt}/placed"
        case PodEvicted():
            wanting = state.pods[event.beneficiary]
            return f"{event.pod}/{event.attempt}/evicted/{wanting.uid}/{wanting.attempt}{again}"
        case PlacementVoided():
            return f"{event.pod}/{event.attempt}/voided{again}"
        case PodResized():
            return f"{event.pod}/resized/{event.asked}"
        case ResizeRefused():
            return f"{event.pod}/not-resized/{event.asked}"
        case PodRefused():
            return f"{event.pod}/refused/{state.revision}"
