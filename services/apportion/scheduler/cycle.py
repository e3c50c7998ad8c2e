"""The scheduling cycle: wait, decide, append, fold, again.

    wake ──► decide ──► fence ──► append ──┬─ taken ──────────► fold up to it ──► decide …
                                          └─ refused, unknown ► fold up to now ─► retry …

Of several schedulers each decides for its shard of the pods. Invariants: one decision is under
way at a time; after an append, whatever became of it, nothing is decided before the fold has passed
everything that the ledger held when its outcome was known; a decision that a fence refused is made
again for half as many pods, and after `REFUSALS_MAX` in a row what is derived is begun anew.

Each placement names the SHA-256 of the message before it on its node, and the first of a batch on a
node expects that message's revision to be the newest there (`Nats-Expected-Last-Subject-Sequence`).
So a batch is taken by the server only if no placement came between what it was decided on and it.
What is decided together is told with one time."""

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
    PlacementVoided,
    PodEvicted,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    ResizeAsked,
    ResizeRefused,
    subject_of,
)
from apportion_schemas.decoding import from_outside

BACK_OFF = BackOff(0.02, 5.0)
REFUSALS_MAX = 10
"""In a row: by then a decision was for a single pod, and several seconds have passed."""
TAKEN, REFUSED, UNKNOWN = "taken", "refused", "unknown"
_STIRS = frozenset((*BY_EVENT, PodSubmitted, BindFailed, AllocationFailed, ResizeAsked))
"""Events after which there may be something to decide: who waits is helped, or has come, or what
failed is to be voided.
"""

_log = logging.getLogger(__name__)


class DecisionsRefused(Exception):
    """The fences refused decision after decision, although the fold was up to date each time."""


class DecisionMetrics:
    """What the scheduler tells about its decisions."""

    def __init__(self, metrics: Metrics, engine: Engine) -> None:
        metrics.gauge("apportion_pending_pods", "Pods that wait for a place.").set_function(
            lambda: engine.pending
        )
        self.decision_seconds = metrics.histogram(
            "apportion_decision_seconds", "Time to decide for one batch of pods."
        )
        self.placements = metrics.counter("apportion_placements_total", "Pods placed.")
        self.evictions = metrics.counter(
            "apportion_evictions_total", "Pods told to go for one of higher priority."
        )
        self.refusals = metrics.counter(
            "apportion_refusals_total", "Pods told why they fit nowhere, by each code.", ("code",)
        )
        self._decisions = metrics.counter(
            "apportion_decisions_total",
            "Decisions by what became of them: taken, refused by a fence, unknown.",
            ("outcome",),
        )
        self._again = metrics.counter(
            "apportion_decided_again_total", "Pods whose decision was not taken, each time."
        )

    def lost(self, outcome: str, *, placed: int, again: int) -> None:
        """Count what was not taken whole: `refused` by a fence, or `unknown`.

        `placed` pods have a place all the same, `again` wait for another decision."""
        self._decisions.labels(outcome).inc()
        self.placements.inc(placed)
        self._again.inc(again)

    def note(self, decision: Decision, seconds: float) -> None:
        """Count what the ledger has taken."""
        self._decisions.labels("taken").inc()
        self.decision_seconds.observe(seconds)
        self.placements.inc(len(decision.placed))
        if not (decision.placed or decision.reported):
            self.evictions.inc(sum(isinstance(event, PodEvicted) for event in decision.events))
        for event in decision.events if decision.reported else ():
            if isinstance(event, PodRefused):
                for code in event.reasons:
                    self.refusals.labels(code.value).inc()


# When to keep apart from other schedulers: only while they place as well.
#
# Schedulers that all put pods on the node that packs best are refused all the time; one that
# keeps to nodes of its own packs a little worse. So a member tries its own nodes first only while
# pods wait for others too, or a fence has refused it, and for a few decisions more.
#
# Invariant: it follows from what has been folded and from what became of one's own decisions,
# without a clock; alone, a scheduler is never apart.

CALM_DECISIONS: Final = 8
"""So many decisions in a row while nobody else had work, and it packs as if it were alone."""


class Contention:
    """One scheduler's view of whether others are at work."""

    def __init__(self) -> None:
        self._calm = CALM_DECISIONS

    @property
    def apart(self) -> bool:
        """Whether to try our own nodes first."""
        return self._calm < CALM_DECISIONS

    def look(self, *, others_wait: bool) -> None:
        """Before a decision: whether pods wait for other members."""
        self._calm = 0 if others_wait else self._calm + 1

    def refused(self) -> None:
        """A fence refused a decision."""
        self._calm = 0


class Cycle:
    """One scheduler's loop over one state."""

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
        """Decide for what is `member`'s among `members`; what became ours is looked at now."""
        self.engine.own(shard(member, members))
        self._stirred.set()

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        self.engine.observe(change)
        self._chosen.observe(change)
        if change.refused or type(change.data) in _STIRS:
            self._stirred.set()

    async def run(
        self,
        reader: Reader[Change],
        metrics: DecisionMetrics,
        joined: Callable[[], Awaitable[None]],
    ) -> None:
        """Decide whenever there is something to decide, until cancelled; `joined` says from when.

        Raises DecisionsRefused: what is derived here can hardly be what the ledger says."""
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
                    await asyncio.sleep(0)  # others of this process go on: the reader, for one
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
        """Wait until there may be something to decide: an event, or the end of a pod's pause."""
        due = self.engine.held_until
        if not due:
            await self._stirred.wait()
            return
        left_s = (due - _micros(self._clock)) / 1_000_000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0)):
                await self._stirred.wait()

    def _decide(self, events_max: int) -> Decision:
        """What is to be appended next: where others have chosen, before where we may choose."""
        if self.engine.held_until:
            self.engine.tell_time(_micros(self._clock))
        if not self._chosen.prepare():
            return Decision(more=True)
        chosen = self._chosen.decide(self.engine.owns, events_max=events_max)
        if chosen:
            decision = Decision(events=[event for _, event in chosen])
            for pod, event in chosen:
                (decision.placed if isinstance(event, PodPlaced) else decision.reported).append(pod)
            return decision
        self._contention.look(others_wait=self.engine.others_wait)
        self.engine.keep_apart(apart=self._contention.apart)
        return self.engine.decide(events_max=events_max)

    async def _append(self, decision: Decision, reader: Reader[Change]) -> str:
        """Append and fold up to the outcome, which is returned."""
        drafts = fence(decision.events, self._state, self._publisher, self._fences)
        outcome = UNKNOWN
        # Pods of a gang that are placed, or pods that are evicted: all or none is stored.
        together = (
            any(pod.submitted.group for pod in decision.placed)
            if decision.placed
            else any(isinstance(event, PodEvicted) for event in decision.events)
        )
        try:
            revision = await commit(self._ledger, drafts, together=together)
        except (FenceRefused, DuplicateRefused) as refusal:
            _log.info("decision refused, deciding again: %s", refusal)
            outcome = REFUSED
            await self._count_refusal(refusal)
        except (OutcomeUnknown, LedgerUnavailable, LedgerFull) as trouble:
            _log.warning("decision of unknown outcome, reading on: %s", trouble)
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

    async def _count_refusal(self, refusal: FenceRefused | DuplicateRefused) -> None:
        """One more in a row. Raises DecisionsRefused if that is too many."""
        if isinstance(refusal, FenceRefused):
            await self._fences.refused(refusal, self._ledger)
        self._contention.refused()
        self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            raise DecisionsRefused(f"{self._refusals} times in a row: {refusal}") from refusal

    async def _newest(self) -> int:
        """The ledger's newest revision; waits for a ledger that is away."""
        while True:
            try:
                return await self._ledger.last_revision()
            except LedgerUnavailable:
                await self._pause()

    async def _pause(self) -> None:
        """Wait, longer each time that an append failed in a row; the first retry is at once."""
        await self._clock.pause(BACK_OFF.after(1 + self._failures))


def _micros(clock: Clock) -> int:
    """The time in microseconds since 1970, rounded up."""
    return math.ceil(clock.now().timestamp() * 1_000_000)


# Decisions into the ledger: as one atomic batch, or one by one where few need not be together.
#
# A batch is files of its own to the server (see `runtime.ledger.batching`), so a decision for a
# few pods is there sooner in single appends. Invariants: a gang, and whatever is not few, is
# stored whole or not at all; of the others a beginning may be stored, which is a decision upon
# the same state too; each append on a node expects the one before it, so nobody comes between
# unseen.


async def commit(ledger: Ledger, drafts: Sequence[Draft], *, together: bool) -> int:
    """Append the drafts of one decision, in order, and return the revision of the last.

    Raises what `Ledger.append` raises; unless `together`, the first of few may be stored then."""
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


# Choices over the bus: the extender says where kube-scheduler wants a pod, and that it was heard.
#
# What comes of a choice is not in the answer but in the ledger, as PodPlaced or PodRefused, which
# only a scheduler writes. Every scheduler hears every choice; that of the pod's shard decides.
# Invariant: a choice that cannot be read changes nothing and is answered with what is wrong.

_read_choice = from_outside(msgspec.json.Decoder(Choice).decode)
_write_heard = msgspec.json.Encoder().encode


async def _serve_choices(ledger: Ledger, chosen: ExternalChoices, stir: Callable[[], None]) -> None:
    """Take choices from now on, and `stir` whoever decides at each."""

    async def take(_subject: str, payload: bytes) -> bytes:
        try:
            choice = _read_choice(payload)
        except msgspec.MsgspecError as error:
            return _write_heard(Heard(error=f"the choice cannot be read: {error}"))
        chosen.choose(choice.pod, choice.node)
        stir()
        return _write_heard(Heard())

    try:
        await ledger.serve(SUBJECT, take)
    except NotPermitted as error:
        _log.warning("pods of extended kube-schedulers are not placed here: %s", error)


def fence(
    events: Iterable[DecisionEvent], state: State, publisher: Publisher, fences: Fences
) -> list[Draft]:
    """The drafts of one decision, in order, for one atomic append."""
    chains: dict[str, str] = {}
    drafts, time = [], publisher.time()

    def draft(event: DecisionEvent, expect: int | None = None) -> Draft:
        if isinstance(event, PodResized | ResizeRefused):
            cause = event.asked
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
        if isinstance(event, PodRefused | ResizeRefused):
            drafts.append(draft(event))
            continue
        node, expect = state.nodes[event.node], None
        if node.name not in chains:
            subject = "" if node.fence else subject_of(event)
            expect = fences.expected(node.fence, folded=state.revision, subject=subject)
        if isinstance(event, PodPlaced):
            submitted = state.pods[event.pod].submitted
            devices = (held.device for held in node.devices)
            event = handed(event, submitted, devices)  # noqa: PLW2901
        chained = structs.replace(event, previous=chains.get(node.name, node.chain))
        drafts.append(draft(chained, expect))
        chains[node.name] = sha256(drafts[-1].payload).hexdigest()
    return drafts


def _id(event: DecisionEvent, state: State) -> str:
    """The pod fence: one placement, and one voiding of it, for each attempt of a pod.

    A place that was adopted may have been voided before, or the pod evicted for the same one, in an
    earlier life of the pod. An eviction for a pod that has gone since changes nothing, and is none
    for the next that needs the room. A refusal is told once for each revision that it was worked
    out on."""
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
