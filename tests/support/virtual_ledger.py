"""Create a ledger in virtual time with the real engine, as input for replays.

Pods arrive and end at times that a test sets. Invariant: the records look like those of a real
ledger: they are in order of time, and each placement names the previous one on its node."""

from __future__ import annotations

import heapq

from msgspec import structs

from apportion.core.ledger.state import State
from apportion.core.placement.engine import Engine
from apportion.lab.recording import Limits, Recorded, Recording, seconds_of
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import rfc3339_of
from apportion_schemas import (
    Event,
    PlacementVoided,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodResized,
    PodSubmitted,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided

CHAINED = (PodPlaced, PlacementVoided, PodEvicted, PodResized)
BEGIN_S = 1_800_000_000.0


class VirtualLedger:
    """An in-memory ledger in virtual time, whose records a test can replay.

    With `watched`, an evicted pod is submitted again under its name, as a controller would."""

    def __init__(self, *, watched: bool = False) -> None:
        self._watched = watched
        self._fold = StateFold(quiet=True)
        self._engine = Engine(self._fold.state)
        self._ends: list[tuple[float, str]] = []
        self._runs_s: dict[str, float] = {}
        self.now_s = BEGIN_S
        self.records: list[Record] = []
        self.placed: dict[str, tuple[float, str, tuple[str, ...], int]] = {}

    @property
    def state(self) -> State:
        return self._fold.state

    def write(self, *payloads: Payload) -> None:
        """Append these events at the current time."""
        for data in payloads:
            if isinstance(data, CHAINED):
                chain = self.state.nodes[data.node].chain
                data = structs.replace(data, previous=chain)  # noqa: PLW2901
            event = Event(id="e", source="test", time=rfc3339_of(self.now_s), data=data)
            revision = self.state.revision + 1
            record = Record(revision, subject_of(data), encode(event))
            change = self._fold.apply(record, event)
            assert not change.refused, change.refused
            self._engine.observe(change)
            self.records.append(record)

    def submit(self, pod: PodSubmitted, *, runs_s: float | None) -> None:
        """Submit a pod that ends `runs_s` seconds after its placement, or never if None."""
        if runs_s is not None:
            self._runs_s[pod.uid] = runs_s
        self.write(pod)

    def settle(self) -> None:
        """Let the engine decide until nothing is left to decide. End each evicted pod."""
        while events := decided(self._engine).events:
            for data in events:
                self.write(data)
                if isinstance(data, PodPlaced):
                    self._note(data)
            for gone in [each for each in events if isinstance(each, PodEvicted)]:
                if self._watched:
                    self._make_anew(gone.pod)
                self.write(PodGone(uid=gone.pod))

    def _make_anew(self, uid: str) -> None:
        """Submit an evicted pod again. It runs for its full time."""
        again = structs.replace(self.state.pods[uid].submitted, uid=f"{uid}-again")
        self.submit(again, runs_s=self._runs_s.get(uid))

    def _note(self, data: PodPlaced) -> None:
        shares = tuple(share.device for share in data.shares)
        self.placed[data.pod] = (self.now_s, data.node, shares, self.state.revision)
        if data.pod in self._runs_s:
            heapq.heappush(self._ends, (self.now_s + self._runs_s[data.pod], data.pod))

    def until(self, at_s: float) -> None:
        """Advance the time to `at_s` seconds after the start, and end the pods whose run time is
        over."""
        at_s += BEGIN_S
        while self._ends and self._ends[0][0] <= at_s:
            self.now_s, uid = heapq.heappop(self._ends)
            if uid in self.state.pods:
                self.write(PodGone(uid=uid))
            if not self._ends or self._ends[0][0] > self.now_s:
                self.settle()
        self.now_s = at_s

    def time_of(self, revision: int) -> float:
        """Return when the record of this revision was written, in seconds since 1970."""
        record = self.records[revision - 1]
        return seconds_of(decode(record.payload, subject=record.subject).time)

    def recorded(self, *, after: int = 0, begin_s: float = 0.0, end_s: float) -> Recorded:
        """Return a recording for a replay, from `begin_s` to `end_s` seconds after the start.

        Only revisions above `after` are recorded."""
        limits = Limits(
            after=after, upto=self.state.revision, begin_s=BEGIN_S + begin_s, end_s=BEGIN_S + end_s
        )
        recording = Recording(State(), limits)
        for record in self.records:
            recording.take(record)
        return recording.finish()
