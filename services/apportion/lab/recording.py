"""Record a span of the ledger: pods that arrive and end, nodes, limits, and the outcome.

A recording has the state at its beginning, a file of the events that no scheduler decided, and how
long each pod ran. Invariant: memory use grows with the number of pods, not with the number of
events."""

from __future__ import annotations

import struct
import tempfile
import weakref
from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct

from apportion.core.answers.replays import Measured, Span, TeamFigures
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion.core.reports.prices import Prices
from apportion.lab.course import TIME
from apportion.lab.meter import Meter
from apportion.lab.planning import comes_again
from apportion.lab.team_meter import TeamKey, TeamMeter
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import rfc3339_of
from apportion_schemas import (
    CATALOGUE,
    DifferenceFound,
    Event,
    FormatEnabled,
    InvalidEvent,
    LedgerRebuilt,
    NodeObserved,
    PlacementVoided,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRejected,
    PodSubmitted,
    RevisionSetAside,
    UnreadableEvent,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload

PODS_MAX: Final = 1_000_000
HELD_BYTES: Final = 32 << 20  # of facts in memory before they go to a file
# Events that a replay makes itself, and those about how the ledger is read.
DECIDED: Final[tuple[type[Payload], ...]] = tuple(
    row.payload
    for row in CATALOGUE
    if row.channel in {"placement", "pending", "limits", "binding", "allocation", "usage", "intake"}
    or row.payload in {PodRejected, DifferenceFound, LedgerRebuilt, FormatEnabled, RevisionSetAside}
)
_HEAD: Final = struct.Struct(">dHI")


class RecordingFailed(Exception):
    """Raised if the span is too large to record; the message says what to do."""


class Fact(NamedTuple):
    """An event that no scheduler decided, and its time in seconds since 1970."""

    at_s: float
    data: Payload


class Limits(Struct, frozen=True):
    """The span to record: revisions after `after` and up to `upto`, and its times in seconds."""

    after: int
    upto: int
    begin_s: float
    end_s: float


class Workload(Struct, frozen=True, kw_only=True):
    """What a replay needs: a state, the facts that follow, and how long pods run, by pod uid.

    A pod that was replaced by a newer pod of the same name has no entry."""

    begin_s: float
    end_s: float
    state: bytes
    facts: Tape
    ran_s: dict[str, float]  # running time of each pod that ended in the span
    ends: dict[str, float] = {}  # the end of each pod that ran before the span
    cut: frozenset[str] = frozenset()  # the pods evicted in the span
    after: dict[str, str] = {}  # the new uid of each evicted pod that came again
    # An evicted pod starts again from its last checkpoint: the pods write one every so many seconds
    # (0: never), or all the time (None).
    checkpoint_s: float | None = None

    def beginning(self) -> State:
        """Return a new copy of the state before the first event of the span."""
        return restore(self.state)

    def lost_s(self, ran_s: float) -> float:
        """Return how much work, in seconds, a pod loses if it is evicted after `ran_s`."""
        if self.checkpoint_s is None:
            return 0.0
        return ran_s % self.checkpoint_s if self.checkpoint_s else ran_s


class Recorded(Workload, frozen=True, kw_only=True):
    """A recorded span of a ledger, and its outcome."""

    span: Span
    happened: Measured
    teams: dict[TeamKey, TeamFigures] = {}

    @property
    def in_kubernetes(self) -> bool:
        """Return True if the span has a node of Kubernetes, so that HyperNodes have an effect."""
        return any(node.observed for node in self.beginning().nodes.values()) or any(
            isinstance(fact.data, NodeObserved) for fact in self.facts
        )


class Tape:
    """A temporary file of facts, which is deleted with this object."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=HELD_BYTES)  # noqa: SIM115 - kept open
        weakref.finalize(self, self._file.close)
        self.count = 0

    def write(self, fact: Fact) -> None:
        """Append a fact to the file. Raises OSError."""
        subject = subject_of(fact.data).encode()
        event = encode(Event(id="lab", source="lab", time=TIME, data=fact.data))
        self._file.write(_HEAD.pack(fact.at_s, len(subject), len(event)) + subject + event)
        self.count += 1

    def __iter__(self) -> Iterator[Fact]:
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            at_s, subject_bytes, event_bytes = _HEAD.unpack(head)
            subject = self._file.read(subject_bytes).decode()
            yield Fact(at_s, decode(self._file.read(event_bytes), subject=subject).data)


class Recording:
    """Makes a recording that begins with `state`. Pass every later record to `take`, in order.

    With prices, the figures of teams have costs."""

    def __init__(self, state: State, limits: Limits, *, prices: Prices | None = None) -> None:
        self._prices = prices
        self._fold = StateFold(state, quiet=True)
        self._limits = limits
        self._meters: tuple[Meter, TeamMeter] | None = None
        self._tape = Tape()
        self._state = b""
        self._now_s = limits.begin_s
        self._running: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._old: set[str] = set()
        self._cut: set[str] = set()
        self._ran_until_cut_s: dict[str, float] = {}
        self._coming: dict[tuple[str, str], str] = {}
        self._after: dict[str, str] = {}
        self._newest: dict[tuple[str, str], str] = {}

    @property
    def revision(self) -> int:
        """Return the newest revision read so far."""
        return self._fold.state.revision

    def take(self, record: Record) -> bool:
        """Read the next record. Return False if no more records of the span follow.

        Raises UnknownEvent if a newer build wrote it, RecordingFailed for too many pods, and
        PriceError for a model without a price."""
        try:
            event = self._fold.rules.read(record.revision, record.subject, record.payload)
        except (UnreadableEvent, InvalidEvent) as error:
            self._fold.refuse(record, str(error))
            return record.revision < self._limits.upto
        if record.revision > self._limits.upto:
            return False
        if record.revision > self._limits.after and self._meters is None:
            self._begin()
        meters = self._meters or ()
        if meters:
            self._now_s = min(max(seconds_of(event.time), self._now_s), self._limits.end_s)
        for meter in meters:
            meter.advance(self._now_s)  # it may look at the state before the event
        change = self._fold.apply(record, event)
        for meter in meters:
            meter.observe(change)
        if meters and not change.refused:
            self._note(self._now_s, change)
        return record.revision < self._limits.upto

    def finish(self) -> Recorded:
        """Return the recording of all records read so far."""
        meter, teams = self._meters or self._begin()
        limits = self._limits
        # Add up the times of resubmitted pods, starting with the last successor.
        for before, again in reversed(self._after.items()):
            if again in self._ran_s:
                ran_s = self._ran_until_cut_s[before] + self._ran_s[again]
                self._ran_s[before] = ran_s
                if before in self._old:
                    self._ends[before] = limits.begin_s + ran_s
        return Recorded(
            span=Span(
                from_revision=limits.after, from_time=rfc3339_of(limits.begin_s),
                to_revision=limits.upto, to_time=rfc3339_of(limits.end_s),
                seconds=round(limits.end_s - limits.begin_s, 6),
            ),
            begin_s=limits.begin_s, end_s=limits.end_s, state=self._state,
            happened=meter.measured(), teams=teams.figures(), ran_s=self._ran_s, ends=self._ends,
            cut=frozenset(self._cut), after=self._after, facts=self._tape,
        )  # fmt: skip

    def _begin(self) -> tuple[Meter, TeamMeter]:
        state, limits = self._fold.state, self._limits
        self._state = take(state)
        span = (limits.begin_s, limits.end_s)
        meter = Meter(state, *span)
        self._meters = meter, TeamMeter(state, *span, meter.requested, self._prices)
        self._old = {uid for uid, pod in state.pods.items() if pod.placement is not None}
        self._running = dict.fromkeys(self._old, limits.begin_s)
        return self._meters

    def _note(self, at_s: float, change: Change) -> None:
        data: Payload = change.data
        if isinstance(data, PodSubmitted):
            self._newest[data.namespace, data.name] = data.uid
            before = self._coming.pop((data.namespace, data.name), None)
            if before is not None:
                self._after[before] = data.uid
        elif isinstance(data, PodPlaced):
            self._running[data.pod] = at_s
            self._old.discard(data.pod)
        elif isinstance(data, PlacementVoided):
            self._running.pop(data.pod, None)
            self._old.discard(data.pod)
        elif isinstance(data, PodEvicted):
            # It has run until now; if it is resubmitted, the next pod of its name continues it.
            self._cut.add(data.pod)
            self._ran_until_cut_s[data.pod] = at_s - self._running.pop(data.pod, at_s)
            if change.pod is not None and comes_again(self._fold.state, change.pod.submitted):
                self._coming[data.namespace, data.name] = data.pod
        elif isinstance(data, PodGone) and data.uid not in self._cut:
            self._note_end(at_s, data, change)
        if not isinstance(data, DECIDED):
            self._tape.write(Fact(at_s, data))

    def _note_end(self, at_s: float, data: PodGone, change: Change) -> None:
        since = self._running.pop(data.uid, None)
        if change.pod is not None:
            was = change.pod.submitted
            newest = self._newest.get((was.namespace, was.name), was.uid)
            if newest in self._fold.state.pods:
                # A newer pod of the same name has replaced it.
                since = None
                self._old.discard(data.uid)
        if since is not None:
            self._ran_s[data.uid] = at_s - since
        if data.uid in self._old:
            self._ends[data.uid] = at_s
        if len(self._ran_s) > PODS_MAX:
            raise RecordingFailed(f"more than {PODS_MAX:,} pods ended; replay a shorter span")


def seconds_of(time: str) -> float:
    """Return an event's time in seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()
