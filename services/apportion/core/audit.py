"""Audit a ledger event by event, trusting neither the writers nor the fold.

| check | what must hold |
|---|---|
| gap | revisions follow one another |
| schema | the bytes are an event of this build's catalogue, on its own subject |
| format | type and version are legal at this revision |
| owner | the event's source is the one writer of its type |
| basis | the basis (the revision that the writer had read) and the cause are earlier revisions |
| chain | a placement names the SHA-256 of the previous message of its node |
| identity | a placement's message id has pod and attempt, so the server stores it only once |
| closed | the device of each share was open at the decision's basis |
| gang | after a decision, a gang has its minimum of pods placed, or its pods are held |
| limit | no placement exceeds a limit of a queue or namespace that was known at its basis |
| invariant | `ledger.invariants`: after each event for its node and pod, at intervals for all |

Events that contradict the state are legal and only counted. Revisions that an operator has set
aside are not checked. The audit ends before an event of a newer build, because this build cannot
compute the state after it. Invariant: the findings depend on the events alone."""

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct

from apportion.core.ledger import fold
from apportion.core.ledger.fold import PLACEMENT_SUBJECTS, Change
from apportion.core.ledger.invariants import violations, violations_near
from apportion.core.ledger.rules import SetAsideEvent
from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.limits.capacity import OF_CAPACITY
from apportion.core.placement.limits.limits import LIMITS_SET, Limits
from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    Event,
    InvalidEvent,
    LimitsChecked,
    NodeCordoned,
    NodeCordonLifted,
    NotEnabledEvent,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodResized,
    ResizeRefused,
    UnreadableEvent,
)
from apportion_schemas.catalogue import BY_PAYLOAD, untoken

FULL_EVERY = 50_000
_PEOPLE = frozenset({"cli", "operator"})
# Sources allowed for a role: users act as the operator, and as the watcher where there is none.
_WRITERS = {"operator": _PEOPLE, "watcher": _PEOPLE | {"watcher"}}
# Events that the gateway may write for a logged-in user, whose name is in the event.
_BY_LOGIN = frozenset({NodeCordoned, NodeCordonLifted, DeviceCordoned, DeviceCordonLifted})
_ID = {PodPlaced: "placed", PlacementVoided: "voided", PodEvicted: "evicted"}
_Chained = PodPlaced | PlacementVoided | PodEvicted | PodResized
_DECISIONS = (PodPlaced, PlacementVoided, PodRefused, PodEvicted, PodResized, ResizeRefused)
_MOVES_LIMITS = LIMITS_SET | OF_CAPACITY | {PodAdopted, PodChanged, PodGroupObserved, PodResized}


class Violation(Struct, frozen=True):
    """A finding of the audit: the revision, the name of the failed check, and an explanation."""

    revision: int
    check: str
    text: str


class _Closed(NamedTuple):
    """A range of revisions in which a device took no pods; `until` is 0 while the range is open."""

    since: int
    until: int = 0

    def at(self, revision: int) -> bool:
        return self.since <= revision and (self.until == 0 or revision < self.until)


class LimitsAudit:
    """Checks each placement of a state against the limits that its scheduler knew.

    Skips a placement if its scheduler did not know the current limits or their use. That is so if a
    limit, the capacity or a pod (adopted, changed, resized) changed after the revision that the
    scheduler had read, or if an earlier placement under the same limits was skipped."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._limits = Limits(state)
        self._moved = state.revision
        self._late: dict[LimitsChecked, int] = {}  # newest placement decided without knowing it

    def take(self, event: Event, change: Change) -> str:
        """Check an event that was just folded. Return the violation as text, or an empty string."""
        limits, kind, pod = self._limits, type(change.data), change.pod
        if limits.active or kind in LIMITS_SET:
            limits.observe(change)
        if change.refused:
            return ""
        if kind in _MOVES_LIMITS:
            self._moved = self._state.revision
        if kind is not PodPlaced or not limits.active or pod is None or pod.placement is None:
            return ""
        fences = list(limits.fences(pod))
        since = max((self._late.get(each, 0) for each in fences), default=0)
        if event.basis < max(since, self._moved):  # without knowing the limits, or their use
            self._late.update(dict.fromkeys(fences, self._state.revision))
            return ""
        exceeded = limits.exceeded_with(pod, pod.placement, pod.placement.shares)
        if exceeded is None:
            return ""
        return f"pod {pod.uid} was placed beyond a limit ({exceeded.code.value})"


class Auditor:
    """Folds a ledger from its first revision, or from a state, and checks every event.

    Revisions before `start` are folded but not checked."""

    def __init__(
        self, state: State | None = None, *, start: int = 1, full_every: int = FULL_EVERY
    ) -> None:
        self.state = state or State()
        self.checked = 0
        self.contradictions = 0
        self.found: Counter[str] = Counter()
        self._start = start
        self._full_every = full_every
        self._chain = {name: each.chain for name, each in self.state.departed.items()}
        self._chain |= {name: node.chain for name, node in self.state.nodes.items()}
        self._closed: dict[str, _Closed] = {}
        self._batch: tuple[str, int] | None = None
        self._gangs: set[str] = set()
        self._gangs_evicted: set[str] = set()
        self._gang_moved: dict[str, int] = {}
        self._limits = LimitsAudit(self.state)
        for node in self.state.nodes.values():
            self._note_closed(node)

    def take(self, revision: int, subject: str, payload: bytes) -> list[Violation]:
        """Check and fold the next message, and return its violations.

        Raises UnknownEvent if a newer build wrote the message. Then the message is not folded, and
        the audit must end."""
        digest = sha256(payload).hexdigest() if subject.startswith(PLACEMENT_SUBJECTS) else ""
        lines = list(self._fold(revision, subject, payload, digest))
        if digest:
            self._chain[untoken(subject.removeprefix(PLACEMENT_SUBJECTS))] = digest
        return self._keep(revision, lines)

    def finish(self) -> list[Violation]:
        """Check the whole state after the last message, and return the violations."""
        lines = [*self._end_of_batch(), *_broken(violations(self.state))]
        return self._keep(max(self.state.revision, self._start), lines)

    def _keep(self, revision: int, lines: list[tuple[str, str]]) -> list[Violation]:
        if revision < self._start:
            return []
        self.found.update(check for check, _ in lines)
        return [Violation(revision, check, text) for check, text in lines]

    def _fold(
        self, revision: int, subject: str, payload: bytes, digest: str
    ) -> Iterator[tuple[str, str]]:
        expected = self.state.revision + 1
        if revision != expected:
            yield "gap", f"revision {revision} found where {expected} was expected"
        try:
            event = self.state.rules.read(revision, subject, payload)
        except (UnreadableEvent, InvalidEvent) as error:
            yield from self._end_of_batch()
            if not isinstance(error, SetAsideEvent):
                check = "format" if isinstance(error, NotEnabledEvent) else "schema"
                yield check, f"on {subject}: {error}"
            fold.refuse(self.state, revision, subject, str(error), digest=digest)
        else:
            yield from self._before(revision, event)
            change = fold.apply(self.state, revision, event, digest=digest)
            yield from _broken(violations_near(self.state, change))
            self._after(change)
            exceeded = self._limits.take(event, change)
            if exceeded:
                yield "limit", exceeded
        self.checked += revision >= self._start
        if revision % self._full_every == 0:
            yield from _broken(violations(self.state))

    # -------------------------------------------------------------- before the fold takes it

    def _before(self, revision: int, event: Event) -> Iterator[tuple[str, str]]:
        data = event.data
        node = getattr(data, "node", "")
        if node not in self.state.nodes and node not in self.state.departed:
            self._chain.pop(node, None)  # the node was forgotten: its chain restarts
        batch = (event.source, event.basis) if isinstance(data, _DECISIONS) else None
        if batch is None or batch != self._batch:
            yield from self._end_of_batch()
        self._batch = batch
        row = BY_PAYLOAD[type(data)]
        signed = event.source.partition("/")[0]
        by_login = signed == "gateway" and type(data) in _BY_LOGIN
        if not by_login and signed not in _WRITERS.get(row.writer, {row.writer}):
            yield "owner", f"only {row.writer} may write {row.name}, not {event.source!r}"
        for name, at in (("basis", event.basis), ("cause", event.cause)):
            if at >= revision:
                said = f"{row.name} at revision {revision}: its {name} must be an earlier revision"
                yield "basis", f"{said}, but is {at}"
        if isinstance(data, _Chained):
            yield from self._placement(event, data)

    def _placement(self, event: Event, data: _Chained) -> Iterator[tuple[str, str]]:
        known = self._chain.get(data.node, "")
        if data.previous != known:
            text = f"node {data.node}: the decision on {data.pod} names {data.previous[:12]!r} as "
            yield "chain", f"{text}its predecessor, instead of {known[:12]!r}"
        wanted = (
            f"{data.pod}/resized/{data.asked}"
            if isinstance(data, PodResized)
            else f"{data.pod}/{data.attempt}/{_ID[type(data)]}"
        )
        if event.id != wanted and not self._reported_again(event.id, data, wanted):
            yield "identity", f"the id is {event.id!r}, but must be {wanted!r}"
        for share in data.shares if isinstance(data, PodPlaced) else ():
            closed = self._closed.get(share.device)
            if closed is not None and closed.at(event.basis):
                text = f"pod {data.pod} got a share of {share.device} by a decision at revision "
                when = f"{event.basis}, but the device had been unavailable since {closed.since}"
                yield "closed", text + when

    def _reported_again(self, event_id: str, data: _Chained, once: str) -> bool:
        """Return True if the event's id is `once` plus a suffix that this type of event may have.

        An eviction's id ends with the beneficiary's uid and attempt. For an adopted pod, the
        revision of its last submission may follow."""
        pod = self.state.pods.get(data.pod)
        lives = 1 if pod is None or pod.adopted else 0
        if isinstance(data, PodEvicted):
            once, least, most = f"{once}/{data.beneficiary}", 1, 1 + lives
        elif isinstance(data, PlacementVoided):
            least, most = 1, lives
        else:
            return False
        begins, numbers = event_id.startswith(f"{once}/"), event_id[len(once) + 1 :].split("/")
        return begins and least <= len(numbers) <= most and all(map(str.isdecimal, numbers))

    # -------------------------------------------------------------- after the fold took it

    def _after(self, change: Change) -> None:
        data = change.data
        if change.refused:
            self.contradictions += 1
            return
        if change.node is not None:
            self._note_closed(change.node)
        group = change.pod.submitted.group if change.pod is not None else ""
        if isinstance(data, PodGroupObserved):
            self._gang_moved[data.group] = self.state.revision
        elif group and isinstance(data, PodGone | PlacementVoided):
            self._gang_moved[group] = self.state.revision
        elif group and isinstance(data, PodPlaced):
            self._gangs.add(group)
        elif group and isinstance(data, PodEvicted):
            self._gangs_evicted.add(group)

    def _note_closed(self, node: NodeState) -> None:
        revision = self.state.revision
        for device in node.devices:
            if self.state.node_of_device.get(device.device.id) != node.name:
                continue
            known = self._closed.get(device.device.id)
            is_open = device.open and not node.cordon and not node.gone
            if is_open and known is not None and not known.until:
                self._closed[device.device.id] = known._replace(until=revision)
            elif not is_open and (known is None or known.until):
                self._closed[device.device.id] = _Closed(revision)

    def _end_of_batch(self) -> Iterator[tuple[str, str]]:
        """Check the gangs of the finished batch.

        A gang that changed after the revision of the decision is not checked."""
        basis = self._batch[1] if self._batch else 0
        for name in sorted(self._gangs):
            group = self.state.groups.get(name)
            if group is None or group.held or self._gang_moved.get(name, 0) > basis:
                continue
            placed = sum(pod.placement is not None for pod in group.pods.values())
            if placed < group.min_available:
                yield "gang", f"gang {name} has {placed} of {group.min_available} pods placed"
        for name in sorted(self._gangs_evicted):
            group = self.state.groups.get(name)
            pods = group.pods.values() if group is not None and group.together else ()
            staying = sum(
                pod.placement is not None and pod.uid not in self.state.evictions for pod in pods
            )
            if staying and self._gang_moved.get(name, 0) <= basis:
                yield "gang", f"gang {name} is evicted in part: {staying} of its pods stay"
        self._gangs.clear()
        self._gangs_evicted.clear()
        self._batch = None


def _broken(lines: list[str]) -> Iterator[tuple[str, str]]:
    return (("invariant", line) for line in lines)
