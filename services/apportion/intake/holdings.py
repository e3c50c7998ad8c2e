"""What pods held before: proof that use which comes late is of a pod that was on that device.

The state has live pods alone, and only where they are now. An agent sums up an hour, in which pods
end and move, so it names with each share the revision of the pod's binding, and the ledger's own
records say what the pod held by it. Invariant: use is taken only of a pod that held the device on
that node, for no longer than it can have, and at most two days and an hour after its end.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Final, TypeVar

from msgspec import Struct

from apportion.core.intake.judging import USE_SECONDS_MAX, Doubt, Refusal, misnamed
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import Ledger
from apportion_schemas import (
    Event,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    UsageRecorded,
    decode,
)
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.envelope import EventError
from apportion_schemas.usage import ShareUsed

LATE_S: Final = 3_600
"""Clocks differ, and a container may run on for a while after its pod left the cluster."""
KEPT_MAX: Final = 4_096
"""Bindings, and ends of pods, that are not read twice."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Held(Struct, frozen=True):
    """What a pod held by one binding: its name, the node, the devices, and since when."""

    name: str
    node: str
    devices: frozenset[str]
    since_s: float


class Holdings:
    """Reads bindings of an intake's ledger, each once."""

    def __init__(self, state: State, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self._held: OrderedDict[tuple[str, int], Held] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()

    async def refusal(self, event: Event, doubt: Doubt) -> Refusal | None:
        """Why one of the doubtful shares is not what its pod held; None where all are.

        Raises LedgerUnavailable.
        """
        for share in doubt.shares:
            refusal = await self._refusal(_seconds(event), doubt.record, share)
            if refusal is not None:
                return refusal
        return None

    async def _refusal(
        self, until_s: float, record: UsageRecorded, share: ShareUsed
    ) -> Refusal | None:
        held = await self._by(share)
        if held is None:
            return _no(f"pod {share.pod} was not bound by revision {share.bound}")
        if held.name != f"{share.namespace}/{share.name}":
            return misnamed(share, held.name)
        if held.node != record.node or share.device not in held.devices:
            return _no(f"pod {share.pod} held nothing of {share.device} on {record.node}")
        if share.pod not in self._state.pods:
            ended_s = await self._end(share.pod)
            if ended_s is None or ended_s + LATE_S < until_s - min(record.seconds, USE_SECONDS_MAX):
                return Refusal("late", f"pod {share.pod} had ended before that time")
            until_s = min(until_s, ended_s)
        if share.seconds > max(until_s - held.since_s, 0) + LATE_S:
            return _no(f"pod {share.pod} was not bound for {share.seconds:,} seconds")
        return None

    async def _by(self, share: ShareUsed) -> Held | None:
        """What the binding that the share names gave to its pod."""
        key = share.pod, share.bound
        if key not in self._held:
            event = await self._read(share.bound)
            found = await self._given(event) if event is not None else None
            if found is None or found[0] != share.pod:
                return None
            _keep(self._held, key, found[1])
        return self._held[key]

    async def _given(self, event: Event) -> tuple[str, Held] | None:
        """The pod, and what it held from this event on: a binding, or an adoption."""
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
        """When the pod left the cluster, in seconds since 1970; None where no event says so."""
        if pod not in self._ended:
            revision = await self._ledger.last_on_subject(f"{SUBJECTS}.workload.{token(pod)}")
            event = await self._read(revision)
            if event is None or not isinstance(event.data, PodGone):
                return None
            _keep(self._ended, pod, _seconds(event))
        return self._ended[pod]

    async def _read(self, revision: int) -> Event | None:
        record = await self._ledger.record_at(revision) if revision > 0 else None
        if record is None:
            return None
        try:
            return decode(record.payload, subject=record.subject)
        except EventError:
            return None


def _keep(known: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    known[key] = value
    if len(known) > KEPT_MAX:
        known.popitem(last=False)


def _no(why: str) -> Refusal:
    return Refusal("implausible-use", why)


def _seconds(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()
