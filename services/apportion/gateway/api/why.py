"""Why a pod is where it is, or was: for pods that have ended too, and since when a device fails.

Invariant: what is said of a pod that has ended is what was said of it just before its end.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from apportion.core.explain.answers import FailedDevice, Step, Why
from apportion.core.explain.health import failed_devices
from apportion.core.explain.why import why, why_ended, why_rejected
from apportion.core.ledger.state import PodState, State
from apportion.gateway.api.answering import json_response
from apportion.gateway.api.evictions import breaches_of, evictions_of
from apportion.gateway.api.history import History
from apportion.gateway.api.query import COMMON, only
from apportion.gateway.past.index import DEVICE, POD
from apportion.gateway.past.past import Past
from apportion_schemas import DeviceHealthChanged, EventError, PodGone, decode

LOOKED_AT = 8
"""The end of a pod is among so many of the newest facts about it: what comes late is little."""


class PastView:
    """One past state to answer from; see `reads.View`."""

    def __init__(self, state: State) -> None:
        self.state = state

    def pod(self, full_name: str) -> PodState | None:
        """See `reads.View`."""
        found = None
        for pod in self.state.pods.values():
            if pod.full_name == full_name:
                found = pod
        return found


class PastWhy:
    """The explanations of one ledger."""

    def __init__(self, past: Past, history: History) -> None:
        self._past = past
        self._history = history

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """`/pods/NAMESPACE/NAME/why`, at a moment or now. Raises RequestRefused, LedgerError."""
        only(request.query, COMMON)
        name = f"{request.match_info['namespace']}/{request.match_info['name']}"
        upto = await self._history.upto(request.query)
        time = await self._past.chronicle.time_at(upto) if "at" in request.query else ""
        state = await self._past.states.at(upto)
        answer = self._live(state, name)
        if answer is None:
            answer = await self._ended(name, upto)
        evictions = await evictions_of(self._past, answer, upto)
        breaches = await breaches_of(self._past, answer, upto)
        said = msgspec.structs.replace(
            answer, revision=upto, time=time, evictions=evictions, breaches=breaches
        )
        return json_response(said)

    def _live(self, state: State, name: str) -> Why | None:
        pod = PastView(state).pod(name)
        if pod is not None:
            failed = failed_devices(state, pod)
            return why(
                state, pod, failed=tuple(self._dated(each, state.revision) for each in failed)
            )
        for rejected in state.rejected.values():
            if f"{rejected.namespace}/{rejected.name}" == name:
                return why_rejected(state, rejected)
        return None

    def _dated(self, failed: FailedDevice, upto: int) -> FailedDevice:
        """With the event since which it is no good, where that was one of its health."""
        mark = self._past.index.newest_mark(
            DEVICE, failed.device, ("failure", "recovery"), after=0, upto=upto
        )
        if mark is None or mark.kind != "failure":
            return failed
        return msgspec.structs.replace(failed, revision=mark.revision, time=mark.time)

    async def _ended(self, name: str, upto: int) -> Why:
        """The newest pod of that name, just before its end. Raises RequestRefused."""
        uids = self._past.index.pods_named(name, upto=upto, limit=1)
        end = await self._end(uids[0], upto) if uids else None
        if end is None:
            raise self._history.no_pod(name, upto)
        step, reason = end
        state = await self._past.states.at(step.revision - 1)
        before = self._live(state, name)
        if before is None:
            raise self._history.no_pod(name, upto)
        failed: tuple[FailedDevice, ...] = ()
        if before.placed is not None:
            devices = tuple(dict.fromkeys(held.share.device for held in before.placed.shares))
            failed = await self._failed_since(devices, before.placed.revision, upto)
        return why_ended(before, step, reason, failed)

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

    async def _failed_since(
        self, devices: tuple[str, ...], after: int, upto: int
    ) -> tuple[FailedDevice, ...]:
        """Those that have failed behind that revision and have not recovered."""
        found = []
        for device in devices:
            mark = self._past.index.newest_mark(
                DEVICE, device, ("failure", "recovery"), after=after, upto=upto
            )
            if mark is None or mark.kind != "failure":
                continue
            [record] = await self._past.chronicle.records([mark.revision])
            data = decode(record.payload, subject=record.subject).data
            reason = data.reason if isinstance(data, DeviceHealthChanged) else ""
            found.append(
                FailedDevice(
                    device=device,
                    reason=reason or "no reason given",
                    revision=mark.revision,
                    time=mark.time,
                )
            )
        return tuple(found)
