"""Explains placed, pending and ended pods, with facts that only past events have.

Such facts are a device's failure, evictions, and breaches of the pod's shares. Invariants: an ended
pod is explained as it was just before its end. An answer reads a bounded number of events, and none
after its revision."""

from collections.abc import Mapping

import msgspec

from apportion.core.answers.past import MarkRow
from apportion.core.answers.reads import Breach, End, Eviction, Evictions, FailedDevice, Step, Why
from apportion.core.explain.health import failed_devices
from apportion.core.explain.text.answer_text import eviction_with_text
from apportion.core.explain.text.event_text import breach_words
from apportion.core.explain.why import why, why_ended, why_rejected
from apportion.core.ledger.state import PodState, State
from apportion.gateway.api.history import History
from apportion.gateway.api.query import AtQuery
from apportion.gateway.past.index import DEVICE, POD
from apportion.gateway.past.past import Past
from apportion_schemas import (
    DeviceHealthChanged,
    Event,
    EventError,
    PodEvicted,
    PodGone,
    ShareBreached,
    decode,
)

FACTS_MAX = 200  # newest events about a pod that are read
PREDECESSORS_MAX = 1_000  # pods of one name that are counted
BREACHES_MAX = 16  # newest combinations of container, device and code
LOOKED_AT = 8  # newest events among which a pod's end is searched, because few events follow it


class PastView:
    """A past state that answers requests; implements `reads.View`."""

    def __init__(self, state: State) -> None:
        self.state = state

    def pod(self, full_name: str) -> PodState | None:
        """Implement `reads.View.pod` for a past state."""
        found = None
        for pod in self.state.pods.values():
            if pod.full_name == full_name:
                found = pod
        return found

    def forecast(self, _pod: PodState) -> None:
        """Implement `reads.View.forecast`: nothing is forecast for the past."""
        return


class PastWhy:
    """Answers `why` requests about the past of one ledger."""

    def __init__(self, past: Past, history: History) -> None:
        self._past = past
        self._history = history

    async def answer(self, query: AtQuery, names: Mapping[str, str]) -> Why:
        """Explain a pod at a point in time, or now. Raises RequestRefused, LedgerError."""
        name = f"{names['namespace']}/{names['name']}"
        upto = await self._history.upto(query)
        time = "" if query.at is None else await self._past.chronicle.time_at(upto)
        state = await self._past.states.at(upto)
        answer = self._live(state, name)
        if answer is None:
            answer = await self._ended(name, upto)
        evictions = await evictions_of(self._past, answer, upto)
        breaches = await breaches_of(self._past, answer, upto)
        return msgspec.structs.replace(
            answer, revision=upto, time=time, evictions=evictions, breaches=breaches
        )

    def _live(self, state: State, name: str) -> Why | None:
        pod = PastView(state).pod(name)
        if pod is not None:
            failed = []
            for each in failed_devices(state, pod):
                mark = self._failure(each.device, after=0, upto=state.revision)
                since = {"revision": mark.revision, "time": mark.time} if mark else {}
                failed.append(msgspec.structs.replace(each, **since))
            return why(state, pod, failed=tuple(failed))
        for rejected in state.rejected.values():
            if f"{rejected.namespace}/{rejected.name}" == name:
                return why_rejected(state, rejected)
        return None

    def _failure(self, device: str, *, after: int, upto: int) -> MarkRow | None:
        kinds = ("failure", "recovery")
        mark = self._past.index.newest_mark(DEVICE, device, kinds, after=after, upto=upto)
        return mark if mark is not None and mark.kind == "failure" else None

    async def _ended(self, name: str, upto: int) -> Why:
        """Explain the newest ended pod of that name just before its end. Raises RequestRefused."""
        uids = self._past.index.pods_named(name, upto=upto, limit=1)
        end = await self._end(uids[0], upto) if uids else None
        if end is None:
            raise self._history.no_pod(name, upto)
        step, reason = end
        state = await self._past.states.at(step.revision - 1)
        before = self._live(state, name)
        if before is None:
            raise self._history.no_pod(name, upto)
        failed = []
        shares, since = (before.placed.shares, before.placed.revision) if before.placed else ((), 0)
        for device in dict.fromkeys(held.share.device for held in shares):
            mark = self._failure(device, after=since, upto=upto)
            if mark is None:
                continue
            [record] = await self._past.chronicle.records([mark.revision])
            data = decode(record.payload, subject=record.subject).data
            why_so = (isinstance(data, DeviceHealthChanged) and data.reason) or "no reason given"
            failed.append(FailedDevice(device, why_so, mark.revision, mark.time))
        return why_ended(before, step, reason, tuple(failed))

    async def _end(self, uid: str, upto: int) -> tuple[Step, str] | None:
        newest = self._past.index.newest_facts(POD, uid, after=0, upto=upto, limit=LOOKED_AT)
        for record in reversed(await self._past.chronicle.records(sorted(newest))):
            try:
                event = decode(record.payload, subject=record.subject)
            except EventError:
                continue
            if isinstance(event.data, PodGone):
                step = Step(phase="ended", revision=record.revision, time=event.time)
                return step, event.data.reason
        return None


async def evictions_of(past: Past, why: Why, upto: int) -> Evictions:
    """Return the evictions that made room for the pod, and how its predecessor ended.

    Raises LedgerError, ArchiveError."""
    name = f"{why.namespace}/{why.name}"
    uids = past.index.pods_named(name, upto=upto, limit=PREDECESSORS_MAX)
    behind = uids.index(why.uid) + 1 if why.uid in uids else 0
    earlier = uids[behind:]
    made_room: tuple[Eviction, ...] = ()
    if why.placed is not None:
        found = await _facts(past, why.uid, why.placed.revision)
        made_room = tuple(
            _eviction(at, event.time, event.data) for at, event in found
            if isinstance(event.data, PodEvicted) and event.data.beneficiary == why.uid
        )  # fmt: skip
    before, ended = None, None
    for at, event in await _facts(past, earlier[0], upto) if earlier else ():
        if isinstance(event.data, PodEvicted) and event.data.pod == earlier[0]:
            before = _eviction(at, event.time, event.data)
        elif isinstance(event.data, PodGone):
            ended = End(revision=at, time=event.time, reason=event.data.reason)
    return Evictions(made_room=made_room, predecessors=len(earlier), before=before, ended=ended)


async def breaches_of(past: Past, why: Why, upto: int) -> tuple[Breach, ...]:
    """Return the newest breaches of the pod's shares. Raises LedgerError, ArchiveError."""
    if why.placed is None:
        return ()
    found: dict[tuple[str, str, str], Breach] = {}
    for at, event in await _facts(past, why.uid, upto, after=why.placed.revision):
        data = event.data
        if not isinstance(data, ShareBreached):
            continue
        before = found.pop((data.container, data.device, data.code), None)
        found[data.container, data.device, data.code] = Breach(
            revision=at,
            time=event.time,
            container=data.container,
            device=data.device,
            code=data.code,
            times=before.times + 1 if before else 1,
            sentence=breach_words(data),
        )
    return tuple(reversed(found.values()))[:BREACHES_MAX]


async def _facts(past: Past, uid: str, upto: int, *, after: int = 0) -> list[tuple[int, Event]]:
    newest = past.index.newest_facts(POD, uid, after=after, upto=upto, limit=FACTS_MAX)
    rules = past.indexer.rules
    found = []
    for record in await past.chronicle.records(sorted(newest)):
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except EventError:
            continue
        found.append((record.revision, event))
    return found


def _eviction(revision: int, time: str, data: PodEvicted) -> Eviction:
    made = Eviction(
        revision=revision,
        time=time,
        namespace=data.namespace,
        name=data.name,
        node=data.node,
        beneficiary=data.beneficiary_name,
        event=data,
    )
    return eviction_with_text(made)
