"""The auditor of a simulation, which checks everything that is appended to the ledger.

Invariants checked after every event:
- the auditor's own fold satisfies core's invariants, and agrees with the record in `books`;
- the hash chain of placements is intact, and the writer had the right to write the event;
- a gang is complete when it is first placed, and uses one device model;
- no placement exceeds a limit of a queue or namespace that its scheduler knew;
- no pod is placed on a node or device that was already closed when the scheduler decided;
- a new engine makes the same decisions from the same state.

If the fold refuses an honest event, the event must have been correct at its basis: the revision
from which its writer decided."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, Protocol

from msgspec import structs

from apportion.core.audit import LimitsAudit
from apportion.core.ledger import fold
from apportion.core.ledger.digest import digest
from apportion.core.ledger.invariants import violations
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.state import State
from apportion.core.placement.engine import EVENTS_MAX, LOOKS_MAX, DecisionEvent, Engine
from apportion.core.placement.queueing.sharding import WHOLE, Shard
from apportion.intake import taking
from apportion.runtime.jetstream.stream import DUPLICATE_WINDOW_S
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.scheduler.cycle import REFUSALS_MAX
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    Event,
    EventError,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodSubmitted,
    ReportRefused,
    SharesAllocated,
)
from apportion_schemas.catalogue import BY_PAYLOAD, token
from apportion_schemas.quantities import Payload
from tests.simulation import hostile
from tests.simulation.books import ALLOCATED, BOUND, GONE, PENDING, PLACED, Books
from tests.support.deciding import decided
from tests.support.memory_server import Stored

UNBOUNDED: Final = 1 << 40  # pods considered in one decision

ROGUE = "rogue"
CHECKPOINT_EVERY = 40
DECIDED_AGAIN_EVERY = 2
"""Check every second decision, if the auditor's state is the one from which it was made."""
_SOURCES = {"intake": "agent/", "binder": "binder", "scheduler": "scheduler/", "watcher": "watcher"}
_RIGHT_BEFORE: dict[type, tuple[str, ...]] = {
    PodPlaced: (PENDING,),
    PodRefused: (PENDING,),
    PlacementVoided: (PLACED, BOUND),
    PodBound: (PLACED,),
    BindFailed: (PLACED,),
    SharesAllocated: (),
    AllocationFailed: (),
}
"""For each event type, the phases of the pod at the basis in which the event was correct."""


class Accepted(Protocol):
    """A function to call for every event that the fold accepts."""

    def __call__(self, revision: int, event: Event, *, honest: bool) -> None:
        """Handle the event. `honest` is True if an honest service wrote it."""


class Auditor:
    """Checks a run's ledger with its own fold and books, and reports each problem."""

    def __init__(
        self, complain: Callable[[str], None], now_s: Callable[[], float], oldest: Callable[[], int]
    ) -> None:
        self.state = State()
        self.books = Books()
        self.log: list[str] = []
        self.checkpoints: dict[int, str] = {}
        self.shards: dict[bytes, Shard] = {}
        self.connections: Counter[str] = Counter()
        self.on_accepted: Accepted | None = None
        self._limits = LimitsAudit(self.state)
        self._complain = complain
        self._now_s = now_s
        self._oldest = oldest
        self._chains: dict[str, tuple[str, int]] = {}
        self._bindings: dict[tuple[str, int], int] = {}
        self._cards: set[str] = set()
        """Devices that honest nodes have reported."""
        self._told_by_rogues: set[str] = set()
        self._mixed: set[str] = set()  # gangs whose models were not chosen by a scheduler of ours
        self._floods: Counter[str] = Counter()
        """How often each intake appended the hostile agent's reports about its own node."""
        self._stored_at_s: list[float] = []

    @property
    def silent_for_s(self) -> float:
        """Return the seconds since the last append."""
        return self._now_s() - (self._stored_at_s[-1] if self._stored_at_s else 0.0)

    def take(self, stored: Stored) -> None:
        """Check one record as soon as it is appended."""
        for record, identity in zip(stored.records, stored.ids, strict=True):
            text = record.payload.decode("utf-8", "backslashreplace")
            self.log.append(
                f"{record.revision} {self._now_s():.6f} {stored.writer} "
                f"{record.subject} {identity} {text}"
            )
            self._stored_at_s.append(self._now_s())
        found = [self._decoded(record, stored) for record in stored.records]
        events = [each for each in found if isinstance(each, Event)]
        self._check_decision(events, stored)
        first_of_gang: dict[str, int] = {}
        for record, event in zip(stored.records, found, strict=True):
            self._fold(record, event, stored, first_of_gang)
            for line in violations(self.state):
                self._complain(f"revision {record.revision}: {line}")
            if record.revision % CHECKPOINT_EVERY == 0:
                self.checkpoints[record.revision] = digest(self.state)
        self._check_gangs(first_of_gang, events)

    def folded(self, who: str, into: StateFold, revision: int) -> None:
        """Check that the reader `who` has the same state as the auditor at this revision."""
        expected = self.checkpoints.get(revision)
        if expected is not None and digest(into.state) != expected:
            self._complain(f"{who} holds another state than the auditor at revision {revision}")

    # ------------------------------------------------------------------ one event

    def _decoded(self, record: Record, stored: Stored) -> Event | EventError:
        try:
            event = self.state.rules.read(record.revision, record.subject, record.payload)
        except EventError as error:
            if stored.writer != ROGUE:
                self._complain(f"revision {record.revision}: {stored.writer} wrote {error}")
            return error
        self._check_intake(record, event, stored)
        row = BY_PAYLOAD[type(event.data)]
        writers = {row.appender} | ({"operator"} if row.writer == "watcher" else set())
        if stored.role not in writers:
            self._complain(f"revision {record.revision}: {stored.role} wrote {row.name}")
        told = isinstance(event.data, ReportRefused)
        source = "intake" if told else _SOURCES.get(stored.role, "")
        if stored.writer != ROGUE and not event.source.startswith(source):
            self._complain(f"revision {record.revision}: {stored.role} signed as {event.source}")
        return event

    def _check_intake(self, record: Record, event: Event, stored: Stored) -> None:
        """Check an event that an intake has appended for an agent.

        It must concern the agent's own node. If the agent is hostile, it must also be harmless."""
        if stored.role != "intake" or stored.writer == ROGUE:
            return
        if isinstance(event.data, ReportRefused):
            if event.data.node != hostile.NODE:
                self._complain(f"revision {record.revision}: an honest agent was refused")
            return
        identity = stored.ids[stored.records.index(record)]
        node = token(event.data.node)
        if not identity.startswith(f"intake/{node}/"):
            self._complain(f"revision {record.revision}: {identity} changed node {node}")
        if node != hostile.NODE and isinstance(event.data, NodeReported):
            self._cards.update(device.id for device in event.data.devices)
        if node == hostile.NODE and not _harmless(event.data, self._cards):
            self._complain(f"revision {record.revision}: a hostile agent was believed")
        if node == hostile.NODE:
            self._check_flood(record.revision, stored.writer)

    def _check_flood(self, revision: int, intake: str) -> None:
        """Check that an intake appends no more changes of a node than its budget allows.

        This must hold whatever the node's agent sends."""
        self._floods[intake] += 1
        budget = (
            taking.CHANGES_BURST * self.connections[intake] + taking.CHANGES_RATE * self._now_s()
        )
        if self._floods[intake] > budget + 1:
            self._complain(f"revision {revision}: {intake} appends a flood of {hostile.NODE}")

    def _fold(
        self, record: Record, event: Event | EventError, stored: Stored, gangs: dict[str, int]
    ) -> None:
        honest = stored.writer != ROGUE
        chain = hashlib.sha256(record.payload).hexdigest()
        on_chain = record.subject.startswith(fold.PLACEMENT_SUBJECTS)
        digest_ = chain if on_chain else ""
        if isinstance(event, EventError):
            why = str(event)
            fold.refuse(self.state, record.revision, record.subject, why, digest=digest_)
            self._chains[record.subject] = chain, record.revision
            return
        data = event.data
        self._look_at(record, data, honest=honest)
        if on_chain:
            self._chains[record.subject] = chain, record.revision
        if isinstance(data, PodBound):
            self._bindings.setdefault((data.pod, data.attempt), record.revision)
        change = fold.apply(self.state, record.revision, event, digest=digest_)
        exceeded = self._limits.take(event, change)
        if exceeded and honest:
            self._complain(f"revision {record.revision}: {exceeded}")
        if change.refused and honest:
            self._check_refused(record.revision, event, change.refused)
        if not change.refused:
            self._accepted(record.revision, event, gangs, honest=honest)

    def _look_at(self, record: Record, data: Any, *, honest: bool) -> None:
        """Check that a placement event continues its node's hash chain.

        If a rogue wrote the event, only note which pod it is about."""
        if not honest:
            self._told_by_rogues.update((getattr(data, "pod", ""), getattr(data, "uid", "")))
            return
        chain, revision = self._chains.get(record.subject, ("", 0))
        if not isinstance(data, PodPlaced | PlacementVoided) or data.previous == chain:
            return
        if data.previous or revision >= self._oldest():
            self._complain(f"revision {record.revision}: the chain of {data.node} is broken")

    def _accepted(
        self, revision: int, event: Event, gangs: dict[str, int], *, honest: bool
    ) -> None:
        data = event.data
        if isinstance(data, PodPlaced):
            group = self.books.pods[data.pod].group
            if honest:
                self._check_open(revision, event)
                if group and group not in self.books.started and not data.held:
                    gangs.setdefault(group, event.basis)
            else:
                self._mixed.add(group)
                self.books.started.add(group)  # later members only complete it
        wrong = self.books.take(revision, data)
        if isinstance(data, PodAdopted):
            self._mixed.add(data.submitted.group)
        elif isinstance(data, PodPlaced) and honest:
            self._check_models(revision, event)
        rogue = getattr(data, "pod", "") in self._told_by_rogues
        if wrong and honest and not rogue and not _is_elsewhere(self.state, data):
            self._complain(f"revision {revision}: {wrong}")
        if self.on_accepted is not None:
            self.on_accepted(revision, event, honest=honest)

    def _check_models(self, revision: int, event: Event) -> None:
        group = self.books.pods[event.data.pod].group
        if not group or self.books.least(group, event.basis) == 1 or group in self._mixed:
            return
        models = self.books.models(group)
        if len(models) > 1:
            self._complain(f"revision {revision}: gang {group} uses {sorted(models)}")

    def _check_open(self, revision: int, event: Event) -> None:
        for share in event.data.shares:
            why = self.books.why_closed(share.device, event.data.node, event.basis)
            if why:
                self._complain(
                    f"revision {revision}: pod {event.data.pod} is placed on {share.device} "
                    f"although {why} at basis {event.basis}"
                )

    def _check_refused(self, revision: int, event: Event, why: str) -> None:
        """Report a problem if the fold refused an honest event that was already wrong at its basis.

        The basis is the revision that the event's writer had read. An event that was right at its
        basis may be refused, because a later event may contradict it. `why` is the fold's reason.
        Events about pods that a rogue has written about are not checked."""
        data = event.data
        uid = getattr(data, "pod", "") or getattr(data, "uid", "")
        if uid in self._told_by_rogues:
            return
        what = f"revision {revision}: {type(data).__name__} of {event.source} is refused: {why}"
        # An id is free again after the duplicate window, and a fence starts afresh once its subject
        # was dropped; then only the fold can refuse a repetition.
        old = "already" in why and self._is_old(event.basis)
        if old or "chain broken" in why or _unread(data, why):
            return
        if self._crossed(data, event.basis) or self._came_too_late(data, event.basis):
            return
        if isinstance(data, PodSubmitted | PodGone):
            self._complain(what)
            return
        pod = self.books.pods.get(uid)
        if pod is None or type(data) not in _RIGHT_BEFORE:
            self._complain(what)
            return
        phase, attempt = pod.life.at(event.basis)
        if isinstance(data, SharesAllocated | AllocationFailed):
            # An agent reads only its own node, so it cannot know whether the binding was accepted.
            if self._bindings.get((uid, data.attempt), event.basis + 1) > event.basis:
                self._complain(f"{what}, and was never bound by basis {event.basis}")
        elif phase not in _RIGHT_BEFORE[type(data)]:
            self._complain(f"{what}, and was wrong at its basis {event.basis}: pod was {phase}")
        elif not isinstance(data, PodRefused) and attempt != data.attempt:
            self._complain(f"{what}, and its basis {event.basis} has attempt {attempt}")
        elif isinstance(data, PodPlaced) and pod.life.now[0] != GONE:
            self._complain(f"{what}, although both fences were there")
        elif isinstance(data, PodBound) and pod.life.now in _once_bound(data.attempt):
            self._complain(f"{what}, although its id was taken")

    def _came_too_late(self, data: object, basis: int) -> bool:
        """Return True if this eviction is late.

        It is late if the evicted pod or the preemptor has changed its phase since the scheduler
        decided."""
        if not isinstance(data, PodEvicted):
            return False
        known = [self.books.pods.get(uid) for uid in (data.pod, data.beneficiary)]
        return any(pod is not None and pod.life.at(basis) != pod.life.now for pod in known)

    def _crossed(self, data: object, basis: int) -> bool:
        """Return True if this event conflicts with another event that its writer had not read yet.

        Only adoptions may conflict, because an adopted pod already runs on its node."""
        if isinstance(data, PodSubmitted | PodRejected):
            return _adopted_since(self.state, data.uid, basis)
        if not isinstance(data, PodAdopted | PodPlaced):
            return False
        known = self.state.nodes.get(data.node)
        pods = known.pods.values() if known is not None else ()
        since = [pod for pod in pods if pod.placed_revision > basis]
        if isinstance(data, PodAdopted):
            return bool(since)
        elsewhere = _adopted_since(self.state, data.pod, basis)
        return elsewhere or any(pod.adopted and pod.uid != data.pod for pod in since)

    def _is_old(self, basis: int) -> bool:
        """Return True if the record `basis` is older than the server's duplicate window."""
        if basis >= len(self._stored_at_s):
            return False
        return self._now_s() - self._stored_at_s[basis] > DUPLICATE_WINDOW_S

    # ------------------------------------------------------------------ one decision

    def _check_decision(self, events: list[Event], stored: Stored) -> None:
        """Check that a new engine with the same state could have made the decision that these
        events record."""
        decisions = [event for event in events if isinstance(event.data, DecisionEvent)]
        if not decisions or stored.writer == ROGUE:
            return
        basis = decisions[0].basis
        if basis != self.state.revision or basis % DECIDED_AGAIN_EVERY:
            return
        before = digest(self.state)
        found = _placements([event.data for event in events])
        shard = self.shards.get(stored.records[0].payload, WHOLE)
        right = any(_is_of(found, again) for again in self._decided_anew(shard, decisions[0].time))
        if digest(self.state) != before:
            self._complain(f"revision {basis}: deciding changed the state")
        if not right:
            expected = next(self._decided_anew(shard, decisions[0].time))
            self._complain(
                f"revision {stored.records[0].revision}: {stored.writer} decided {found}, "
                f"and an engine new to the state at {basis} decides {expected}"
            )

    def _decided_anew(self, shard: Shard, time: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the placements of each decision that a scheduler of this shard could make now."""
        for refused in range(REFUSALS_MAX + 1):
            for looks_max, apart in product((UNBOUNDED, LOOKS_MAX), (False, True)):
                engine = Engine(self.state, now=micros_of(time) or 0)
                engine.own(shard)
                engine.keep_apart(apart=apart)
                events_max = max(EVENTS_MAX >> refused, 1)
                again = decided(engine, events_max=events_max, looks_max=looks_max)
                yield _placements(again.events)

    def _check_gangs(self, first: dict[str, int], events: list[Event]) -> None:
        for group, basis in first.items():
            self.books.started.add(group)
            new = {event.data.pod for event in events if isinstance(event.data, PodPlaced)}
            placed = sum(
                pod.group == group and (uid in new or pod.life.at(basis)[0] == PLACED)
                for uid, pod in self.books.pods.items()
            )
            least = self.books.least(group, basis)
            if placed < least:
                self._complain(f"gang {group} starts with {placed} pods and needs {least}")


def _harmless(said: Payload, cards: set[str]) -> bool:
    """Return True if a hostile agent's report invents no devices and its node fits no pod."""
    if not isinstance(said, NodeReported) or any(card.id not in cards for card in said.devices):
        return False
    host = structs.replace(said.host, cpu_milli=0)  # no pod fits there, however much it reports
    return structs.replace(said, devices=(), host=host) == hostile.NOTHING


def _unread(data: object, why: str) -> bool:
    """Return True if the fold refused a hostile agent's report because of another node's device.

    An intake may accept such a report before it has read which node has the device."""
    hostile_report = isinstance(data, NodeReported) and data.node == hostile.NODE
    return hostile_report and "is reported by node" in why


def _once_bound(attempt: int) -> tuple[tuple[str, int], ...]:
    return (BOUND, attempt), (ALLOCATED, attempt)


def _placements(events: list[Any]) -> list[tuple[Any, ...]]:
    """Return the placements, in the order in which they were decided."""
    return [
        (data.pod, data.attempt, data.node, tuple((s.container, s.device) for s in data.shares))
        for data in events
        if isinstance(data, PodPlaced)
    ]


def _is_of(found: list[Any], again: list[Any]) -> bool:
    """Return True if `again` starts with the placements in `found`.

    `found` may be shorter, because an engine splits many placements into several decisions."""
    return found == again or (bool(found) and found == again[: len(found)])


def _is_elsewhere(state: State, data: object) -> bool:
    """Return True if the event adopts a pod on a device that has moved to another node."""
    if not isinstance(data, PodAdopted):
        return False
    known = state.nodes[data.node].by_id
    return not all(known[share.device].present for share in data.shares)


def _adopted_since(state: State, uid: str, basis: int) -> bool:
    pod = state.pods.get(uid)
    return pod is not None and pod.adopted and pod.placed_revision > basis
