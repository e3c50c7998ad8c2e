"""Validates and appends the reports of agents, in a lane (queue) per node; lanes run in parallel.

An accepted event is encoded again, so none of the sender's bytes reach the ledger. Invariants: each
request is answered at most once, and the agent retries. Each lane is bounded, and so are all lanes
together. A request over a bound is dropped undecoded, so a flood fills only its own node's lane.

Each share of a usage record names the revision of its pod's binding. Invariant: the usage of a pod
is accepted only for devices that the pod had on that node, and for no longer than the pod was
bound. The record must come at most two days and an hour after the pod's end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from apportion.core.bounded import remember
from apportion.core.intake.answers import (
    EXPECTED,
    GROUP,
    SUBJECTS_OF_ALL,
    WHY_MAX,
    Answer,
    Cause,
    append_id,
    encode_answer,
    may_be_answered,
    node_of_subject,
    refused_id,
)
from apportion.core.intake.inventory import jump
from apportion.core.intake.judging import (
    AGENTS_EVENTS,
    USE_SECONDS_MAX,
    Doubt,
    Known,
    Refusal,
    judge,
    misnamed,
)
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import (
    Draft,
    DuplicateRefused,
    Ledger,
    LedgerUnavailable,
    Request,
)
from apportion.runtime.ledger.publisher import Append, Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.limits import Bucket
from apportion_schemas import (
    DeviceHealthChanged,
    Event,
    InvalidEvent,
    NodeReported,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    ReportRefused,
    UnknownEvent,
    UnreadableEvent,
    UsageRecorded,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.catalogue import BY_TYPE, SUBJECTS, token
from apportion_schemas.decoding import from_outside
from apportion_schemas.envelope import EventError
from apportion_schemas.quantities import TEXT_MAX

UNANSWERED_MAX: Final = 64  # per node: twice what its agent ever sends at once
# Per node, and for all nodes: a client that may speak for every node could fill every lane.
UNANSWERED_BYTES_MAX: Final = 4 << 20
BYTES_OF_ALL_MAX: Final = 256 << 20
RATE: Final = 100.0  # sustained events per second of one node
BURST: Final = 500.0  # twice the pods that a kubelet runs, all at once
# Changes of a node's inventory: all of its devices may fail at once, and recover.
CHANGES_RATE: Final = 1.0
CHANGES_BURST: Final = 128.0
# Appended for one node per hour: sixty times what a kubelet full of short jobs makes.
RECORDS_AN_HOUR: Final = 10_000
BYTES_AN_HOUR: Final = 16 << 20
BYTES_OF_A_TOKEN: Final = 4_096
LANES_MAX: Final = 20_000  # more than the nodes of the largest cluster; idle lanes are replaced
LOOKED_AT: Final = 4  # least recently used lanes that are checked for an idle one
# tolerated overlap of a container's records: clocks are set, and agents round
OVERLAP_S: Final = 120.0
USED_MAX: Final = 4_096
HELD_S: Final = 600.0  # how long a held report is remembered
LATE_S: Final = 3_600  # clocks differ, and a container may outlive its pod for a while
KEPT_MAX: Final = 4_096  # cached bindings, and cached ends of pods
BASIS_WAIT_S: Final = 5.0  # how long an event waits until this process has read its basis
AGAIN_S: Final = 1.0
LATER_S: Final = 30.0
# Parts of the ledger's capacity that reports of agents, and usage records, must leave free.
RESERVE: Final = 0.05
RESERVE_OF_USAGE: Final = 0.10
_USAGE: Final = f"{SUBJECTS}.usage."
HOLD_S: Final = 3.0  # a jump in inventory is believed when it is reported again this much later
# fraction of HOLD_S after which a repeat counts, because agents jitter their retries
EARLY: Final = 0.5


class Lane:
    """The queued requests of one node, oldest first, with the node's rate limits."""

    def __init__(self, node: str, now_s: float, lanes: Lanes) -> None:
        self.node = node
        self.held = ""
        self.held_s = 0.0
        self.work: asyncio.Task[None] | None = None
        self._waiting: deque[Request] = deque()
        self._bucket = Bucket(RATE, BURST, now_s)
        self._changes = Bucket(CHANGES_RATE, CHANGES_BURST, now_s)
        self._records = Bucket(RECORDS_AN_HOUR / 3_600, RECORDS_AN_HOUR, now_s)
        self._size = Bucket(BYTES_AN_HOUR / 3_600, BYTES_AN_HOUR, now_s)
        self._used: dict[tuple[str, ...], tuple[float, str]] = {}
        self._unanswered = 0
        self._bytes = 0
        self._lanes = lanes

    def put(self, request: Request) -> bool:
        """Queue the request and return True, or return False if there is no room."""
        size = len(request.payload)
        if self._unanswered >= UNANSWERED_MAX or self._bytes + size > UNANSWERED_BYTES_MAX:
            return False
        if self._lanes.taken + size > BYTES_OF_ALL_MAX:
            return False
        self._unanswered += 1
        self._bytes += size
        self._lanes.unanswered += 1
        self._lanes.taken += size
        self._waiting.append(request)
        return True

    def next(self) -> Request | None:
        """Return the oldest request, or None. The caller calls `over` when the request is done."""
        return self._waiting.popleft() if self._waiting else None

    def over(self, request: Request) -> None:
        """Free the room of a request that was answered, or that will never be answered."""
        self._unanswered -= 1
        self._bytes -= len(request.payload)
        self._lanes.unanswered -= 1
        self._lanes.taken -= len(request.payload)

    def pace(self, request: Request, now_s: float) -> float:
        """Return the seconds to wait before decoding `request`, by the node's rate limits."""
        return self._bucket.take(1 + len(request.payload) / BYTES_OF_A_TOKEN, now_s)

    def may_change(self, now_s: float) -> bool:
        """Return True if the node's limit permits another change of its inventory now."""
        return self._changes.may_take(1, now_s)

    def may_append(self, size: int, now_s: float) -> bool:
        """Return True if `size` more bytes fit the node's hourly budget."""
        return self._records.may_take(1, now_s) and self._size.may_take(size, now_s)

    def used_twice(self, event: Event, data: UsageRecorded) -> str:
        """Return an error if an earlier record has usage of the same share and time, or ""."""
        ends_s = _seconds(event)
        for share in data.shares:
            key = share.pod, share.container, share.device, str(share.instance)
            before_s, identity = self._used.get(key, (0.0, ""))
            begins_s = ends_s - min(share.seconds, data.seconds)
            if identity and identity != event.id and begins_s < before_s - OVERLAP_S:
                return (
                    f"usage of pod {share.pod} on {share.device} is already recorded for this time"
                )
        for share in data.shares:
            key = share.pod, share.container, share.device, str(share.instance)
            remember(self._used, key, (ends_s, event.id), most=USED_MAX)
        return ""

    def idle(self, now_s: float) -> bool:
        """Return True if the lane may be dropped: no requests wait, and no limit is in use."""
        held = self.held and now_s - self.held_s <= HELD_S
        buckets = (self._bucket, self._changes, self._records, self._size)
        full = all(each.full(now_s) for each in buckets)
        return full and not held and not self._unanswered


class Lanes:
    """The lanes of nodes that sent requests, least recently used first."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        # Payload bytes and number of the unanswered requests in all lanes.
        self.taken = self.unanswered = 0

    def of(self, node: str, now_s: float) -> Lane | None:
        """Return the lane (queue) of the node's requests, or None if too many lanes are busy."""
        lane = self._lanes.get(node)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                # Replace an idle lane among the oldest; move busy ones to the end.
                for oldest in list(islice(self._lanes.values(), LOOKED_AT)):
                    if oldest.idle(now_s):
                        del self._lanes[oldest.node]
                        break
                    self._lanes.move_to_end(oldest.node)
            if len(self._lanes) >= LANES_MAX:
                return None
            lane = self._lanes[node] = Lane(node, now_s, self)
        self._lanes.move_to_end(node)
        return lane


class Held(Struct, frozen=True):
    """The binding of a pod: the pod's name, its node and devices, and when it was bound."""

    name: str
    node: str
    devices: frozenset[str]
    since_s: float


class Holdings:
    """Reads pods' bindings from the ledger, with a cache."""

    def __init__(self, state: State, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self._held: dict[tuple[str, int], Held] = {}
        self._ended: dict[str, float] = {}

    async def refusal(self, event: Event, doubt: Doubt) -> Refusal | None:
        """Return a refusal if a share in `doubt` is invalid, or None. Raises LedgerUnavailable."""
        node, until_s = doubt.record.node, _seconds(event)
        seconds = min(doubt.record.seconds, USE_SECONDS_MAX)
        for share in doubt.shares:
            key = share.pod, share.bound
            if key not in self._held:
                bound = await self._read(share.bound)
                found = await self._given(bound) if bound is not None else None
                if found is None or found[0] != share.pod:
                    return _no(
                        f"revision {share.bound} is not a binding or adoption of pod {share.pod}"
                    )
                remember(self._held, key, found[1], most=KEPT_MAX)
            held, ended_s = self._held[key], until_s
            if held.name != f"{share.namespace}/{share.name}":
                return misnamed(share, held.name)
            if held.node != node or share.device not in held.devices:
                return _no(f"pod {share.pod} had no share of {share.device} on {node}")
            if share.pod not in self._state.pods:
                end_s = await self._end(share.pod)
                if end_s is None or end_s + LATE_S < until_s - seconds:
                    return Refusal("late", f"pod {share.pod} had ended before that time")
                ended_s = min(until_s, end_s)
            if share.seconds > max(ended_s - held.since_s, 0) + LATE_S:
                return _no(
                    f"pod {share.pod} was bound for less than the reported {share.seconds:,} s"
                )
        return None

    async def _given(self, event: Event) -> tuple[str, Held] | None:
        data, since_s = event.data, _seconds(event)
        if isinstance(data, PodAdopted):
            name = f"{data.submitted.namespace}/{data.submitted.name}"
        elif isinstance(data, PodBound):
            bound, decision = data, await self._read(event.cause)
            if decision is None or not isinstance(decision.data, PodPlaced):
                return None
            data = decision.data
            if (data.pod, data.node, data.attempt) != (bound.pod, bound.node, bound.attempt):
                return None
            name = f"{data.namespace}/{data.name}"
        else:
            return None
        devices = frozenset(share.device for share in data.shares)
        return data.pod, Held(name, data.node, devices, since_s)

    async def _end(self, pod: str) -> float | None:
        """Return when the pod left the cluster (Unix time), or None if it is still there."""
        if pod not in self._ended:
            revision = await self._ledger.last_on_subject(f"{SUBJECTS}.workload.{token(pod)}")
            event = await self._read(revision)
            if event is None or not isinstance(event.data, PodGone):
                return None
            remember(self._ended, pod, _seconds(event), most=KEPT_MAX)
        return self._ended[pod]

    async def _read(self, revision: int) -> Event | None:
        record = await self._ledger.record_at(revision) if revision > 0 else None
        if record is None:
            return None
        try:
            return decode(record.payload, subject=record.subject)
        except EventError:
            return None


def _no(why: str) -> Refusal:
    return Refusal("implausible-use", why)


def _seconds(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()


class Taking:
    """Handles the reports of agents, for one run of the intake."""

    def __init__(
        self,
        state: State,
        reader: Reader[Any],
        ledger: Ledger,
        append: Append,
        refusals: Refusals,
        *,
        clock: Clock,
        metrics: Metrics,
        free: Callable[[int], float] = lambda _bytes: 1.0,
        spend: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        """Set up. `free(n)` is the fraction of the ledger that is free after `n` more bytes."""
        self._state = state
        self._free = free
        self._spend = spend
        self._reader = reader
        self._ledger = ledger
        self._holdings = Holdings(state, ledger)
        self._append = append
        self._refusals = refusals
        self._clock = clock
        self._lanes = Lanes()
        self._tasks: asyncio.TaskGroup | None = None
        self._listening = False
        self._taken = metrics.counter(
            "apportion_intake_events_total", "Events from agents by outcome.", ("outcome",)
        )
        metrics.gauge(
            "apportion_intake_unanswered",
            "Number of events from agents that the intake has not answered yet.",
        ).set_function(lambda: self._lanes.unanswered)

    def not_ready(self) -> list[str]:
        """Return why no reports are accepted yet; empty once the intake accepts them."""
        return [] if self._listening else ["not listening to agents yet"]

    async def run(self) -> None:
        """Accept reports until the reader halts. Raises the errors of `append`."""
        await self._reader.caught_up()
        async with asyncio.TaskGroup() as self._tasks:
            leave = await self._ledger.take_requests(SUBJECTS_OF_ALL, self.take, group=GROUP)
            self._listening = True
            await self._reader.folds(sys.maxsize)
            await leave()
            self._listening = False

    def take(self, request: Request) -> None:
        """Queue a request in its node's lane, or drop it."""
        node = node_of_subject(request.subject)
        lane = self._lanes.of(node, self._clock.monotonic()) if node else None
        if lane is None or not lane.put(request):
            self._count("dropped")
            if lane is not None:
                self._refusals.note(
                    node, Refusal("too-many", "the agent has too many unanswered events")
                )
            return
        if lane.work is None:
            lane.work = self._begin(self._work(lane), f"intake of {node}")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Start `work` as a task. If this run has not begun or has ended, drop the work."""
        if self._tasks is not None:
            try:
                return self._tasks.create_task(work, name=name)
            except RuntimeError:  # the task group is ending; requests arrive until disconnection
                pass
        work.close()
        return None

    async def _work(self, lane: Lane) -> None:
        try:
            while (request := lane.next()) is not None:
                wait_s = lane.pace(request, self._clock.monotonic())
                if wait_s:
                    await asyncio.sleep(wait_s)
                if not may_be_answered(request.reply):
                    self._count("refused")
                    self._refusals.note(
                        lane.node,
                        Refusal("foreign-reply", "the reply subject is not an agent's inbox"),
                    )
                    lane.over(request)
                    continue
                judged = await self._judged(lane, request)
                if isinstance(judged, Draft):
                    judged = self._within_budget(lane, judged)
                if isinstance(judged, Draft):
                    self._begin(self._append_one(lane, request, judged), f"append for {lane.node}")
                else:
                    await self._answer(lane, request, judged)
        finally:
            lane.work = None

    async def _judged(self, lane: Lane, request: Request) -> Draft | Answer:
        event = read(lane.node, request.payload, self._clock.now())
        if isinstance(event, Refusal):
            return self._refused(lane.node, event)
        if event.basis > self._state.revision and (answer := await self._reach(lane, event.basis)):
            return answer
        verdict = judge(self._state, lane.node, event)
        if isinstance(verdict, Doubt):
            try:
                verdict = await self._holdings.refusal(event, verdict)
            except LedgerUnavailable as trouble:
                return self._again(str(trouble))
        if verdict is None and isinstance(event.data, UsageRecorded):
            why = lane.used_twice(event, event.data)
            verdict = Refusal("implausible-use", why) if why else None
        if isinstance(verdict, Refusal):
            return self._refused(lane.node, verdict)
        if isinstance(verdict, Known):
            self._count("known")
            return Answer(revision=verdict.revision, duplicate=True)
        if isinstance(event.data, NodeReported) and (why := self._held(lane, event.data)):
            self._count("held")
            return Answer(again_s=HOLD_S, held=True, why=why)
        if isinstance(event.data, NodeReported | DeviceHealthChanged) and not lane.may_change(
            self._clock.monotonic()
        ):
            why = "the node's devices change more than once per second"
            self._refusals.note(lane.node, Refusal("flapping", why))
            return self._again(why)
        return Draft(subject_of(event.data), append_id(lane.node, event.id), encode(event))

    def _within_budget(self, lane: Lane, draft: Draft) -> Draft | Answer:
        """Return the draft, or a request to retry if the ledger or the node's budget is too full.

        Operators and schedulers need the rest of the ledger for repairs. Usage records are held
        back earlier than other events, because no container waits for them."""
        of_usage = draft.subject.startswith(_USAGE)
        reserve = RESERVE_OF_USAGE if of_usage else RESERVE
        size_bytes = len(draft.payload)
        if self._free(size_bytes) < reserve:
            return self._again(
                f"the ledger is almost full; its last {reserve:.0%} is reserved for other events",
                LATER_S if of_usage else AGAIN_S,
            )
        if lane.may_append(size_bytes, self._clock.monotonic()):
            self._spend(size_bytes)
            return draft
        why = f"more than {RECORDS_AN_HOUR:,} records or {BYTES_AN_HOUR >> 20} MiB within an hour"
        self._refusals.note(lane.node, Refusal("too-many", why))
        return self._again(why, LATER_S)

    async def _reach(self, lane: Lane, basis: int) -> Answer | None:
        """Wait until the reader has read `basis`; return None, or an answer on failure."""
        try:
            last = await self._ledger.last_revision()
        except LedgerUnavailable as trouble:
            return self._again(str(trouble))
        if basis > last:
            why = f"basis {basis} is in the future: the ledger ends at revision {last}"
            return self._refused(lane.node, Refusal("future-basis", why))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BASIS_WAIT_S):
                if await self._reader.folds(basis):
                    return None
        return self._again(f"this intake is behind: at revision {self._reader.revision} of {basis}")

    def _held(self, lane: Lane, report: NodeReported) -> str:
        known = self._state.nodes.get(lane.node)
        why = jump(known.reported if known is not None else None, report)
        now_s = self._clock.monotonic()
        digest = hashlib.sha256(msgspec.json.encode(report)).hexdigest() if why else ""
        if why and (lane.held != digest or now_s - lane.held_s > HELD_S):
            lane.held, lane.held_s = digest, now_s
            return why
        if why and now_s - lane.held_s < EARLY * HOLD_S:
            return why
        lane.held = ""
        return ""

    async def _append_one(self, lane: Lane, request: Request, draft: Draft) -> None:
        try:
            appended = await self._append(draft)
        except DuplicateRefused as taken:
            # The agent was killed while it answered one claim twice, or it attacks us.
            why = f"revision {taken.revision} has the same message id but other content"
            answer = self._refused(lane.node, Refusal("late", why))
        else:
            self._count("duplicate" if appended.already_there else "appended")
            answer = Answer(revision=appended.revision, duplicate=appended.already_there)
        await self._answer(lane, request, answer)

    async def _answer(self, lane: Lane, request: Request, answer: Answer) -> None:
        lane.over(request)
        with contextlib.suppress(LedgerUnavailable):  # the agent retries
            await request.answer(encode_answer(answer))

    def _refused(self, node: str, refusal: Refusal) -> Answer:
        self._count("refused")
        self._refusals.note(node, refusal)
        return Answer(refused=refusal.cause, why=refusal.why)

    def _again(self, why: str, again_s: float = AGAIN_S) -> Answer:
        self._count("again")
        return Answer(again_s=again_s, why=why)

    def _count(self, outcome: str) -> None:
        self._taken.labels(outcome).inc()


# twice the report of a node with 64 devices, each linked to all others
BYTES_MAX: Final = 512 << 10
AHEAD_MAX: Final = timedelta(days=1)  # an agent's clock may be wrong, but not by a year

_CAUSES: Final[dict[type[EventError], Cause]] = {
    UnknownEvent: "unknown-format",
    UnreadableEvent: "unreadable",
    InvalidEvent: "invalid",
}


class _Of(msgspec.Struct):
    node: str


class _Head(msgspec.Struct):
    type: str
    data: _Of


_decode_head = from_outside(msgspec.json.Decoder(_Head).decode)


def read(node: str, payload: bytes, now: datetime) -> Event | Refusal:
    """Decode the event that the agent of `node` sent, or return the refusal."""
    if len(payload) > BYTES_MAX:
        return Refusal("too-large", f"{len(payload):,} bytes exceed the limit of {BYTES_MAX:,}")
    try:
        head = _decode_head(payload)
    except msgspec.DecodeError as error:
        return Refusal("unreadable", _short(error))
    row = BY_TYPE.get(head.type)
    if row is None:
        return Refusal("unknown-format", f"this intake does not know type {head.type[:64]!r}")
    if row.payload not in AGENTS_EVENTS:
        return Refusal("not-an-agents", f"only the {row.writer} may write {row.name}")
    if head.data.node != node:
        return Refusal(
            "foreign-node", f"{row.name} is about another node, {head.data.node[:253]!r}"
        )
    try:
        event = decode(payload, subject=f"{SUBJECTS}.{row.channel}.{token(node)}")
    except EventError as error:
        return Refusal(_CAUSES[type(error)], _short(error))
    try:
        time = datetime.fromisoformat(event.time)
        early = time <= now + AHEAD_MAX
    except (ValueError, TypeError, OverflowError):
        return Refusal("implausible-time", f"{event.time!r} is not an RFC 3339 time")
    return event if early else Refusal("implausible-time", f"{event.time} is in the future")


def _short(error: Exception) -> str:
    return str(error)[:WHY_MAX]


QUIET_S: Final = 3_600.0  # the same cause of the same node is reported once in this time
SAID_MAX: Final = 10_000

WAITING_MAX: Final = 1_000  # refusals to append; further ones are only logged

_log = get_logger(__name__)


class Refusals:
    """Reports refused events in the log and in the ledger.

    Invariant: each node and cause is reported once an hour, so a faulty agent can fill neither log
    nor ledger. The hour is part of the event id, so several intakes append a report once."""

    def __init__(self, publisher: Publisher, clock: Clock, metrics: Metrics) -> None:
        self._publisher = publisher
        self._clock = clock
        self._waiting: asyncio.Queue[ReportRefused] = asyncio.Queue(WAITING_MAX)
        self._said: dict[tuple[str, str], float] = {}
        self._refused = metrics.counter(
            "apportion_intake_refused_total",
            "Events from agents that the intake refused, by cause.",
            ("cause",),
        )

    def note(self, node: str, refusal: Refusal) -> None:
        """Count a refusal of this node's agent. Report it at most once an hour per cause."""
        self._refused.labels(refusal.cause).inc()
        if refusal.cause in EXPECTED:
            return
        key = node, refusal.cause
        now_s = self._clock.monotonic()
        if now_s - self._said.get(key, -QUIET_S) < QUIET_S:
            return
        remember(self._said, key, now_s, most=SAID_MAX)
        _log.error("report refused", node=node, cause=refusal.cause, why=refusal.why)
        if not self._waiting.full():
            message = refusal.why[:TEXT_MAX]
            refused = ReportRefused(node=node, cause=refusal.cause, message=message)
            self._waiting.put_nowait(refused)

    async def tell(self, revision: Callable[[], int]) -> None:
        """Append reported refusals until cancelled. `revision` returns the basis of the events."""
        while True:
            refused = await self._waiting.get()
            hour = int(self._clock.now().timestamp() // QUIET_S)
            name = refused_id(refused.node, refused.cause, hour)
            await self._publisher.publish(refused, event_id=name, basis=revision())
