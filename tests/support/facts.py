"""Read the events of a real ledger, and append events to it as any role."""

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion_schemas import (
    Event,
    PodBound,
    PodPlaced,
    PodResized,
    PodSubmitted,
    ResizeAsked,
    Score,
    Shape,
    Share,
    decode,
    encode,
)
from apportion_schemas.catalogue import BY_PAYLOAD, subject_of
from apportion_schemas.envelope import EventError
from apportion_schemas.quantities import Payload
from tests.support.nats import Bus
from tests.support.polling import WAIT_S, until

P = TypeVar("P", bound=Payload)


class Facts:
    """A reader of all events of a ledger, which can also append events.

    Records that are not valid events are kept in `refused`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pens: dict[str, JetStreamLedger] = {}
        self._ids = itertools.count(1)
        self._chain: dict[str, str] = {}
        self.events: list[tuple[int, Event]] = []
        self.refused: list[int] = []

    async def open(self) -> None:
        """Start reading the ledger, with the permissions of an auditor."""
        auditor = await self._bus.connect("auditor")
        await auditor.follow(self._take)

    def _take(self, record: Record) -> None:
        try:
            event = decode(record.payload, subject=record.subject)
        except EventError:
            self.refused.append(record.revision)
            return
        self.events.append((record.revision, event))
        if record.subject.startswith("apportion.v1.placement."):
            self._chain[event.data.node] = hashlib.sha256(record.payload).hexdigest()

    def of(self, kind: type[P]) -> list[P]:
        """Return all payloads of one type, in order."""
        return [event.data for _, event in self.events if isinstance(event.data, kind)]

    @property
    def revision(self) -> int:
        """Return the newest revision read so far."""
        return self.events[-1][0] if self.events else 0

    async def until(self, check: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """Wait until `check` returns a true value, and return that value."""

        async def seen() -> Any:
            return check()

        return await until(seen, what, timeout_s=timeout_s)

    async def count(self, kind: type[Payload], number: int) -> list[Any]:
        """Wait for at least `number` events of a type, and return their payloads."""
        name = kind.__name__
        await self.until(lambda: len(self.of(kind)) >= number, f"{number} x {name}")
        return self.of(kind)

    async def write(
        self, *payloads: Payload, role: str = "", event_id: str = "", basis: int = 0
    ) -> int:
        """Append events in one batch, and return the last revision.

        The writer is `role`, or by default the role that usually writes such events. `basis` is the
        revision up to which the writer has read."""
        role = role or BY_PAYLOAD[type(payloads[0])].appender
        if role not in self._pens:
            self._pens[role] = await self._bus.connect(role)
        drafts = [
            Draft(subject_of(data), identity, encode(_event(role, identity, data, basis)))
            for data in payloads
            for identity in [event_id or f"test-{next(self._ids)}"]
        ]
        revision = (await self._pens[role].append(drafts))[-1]
        await self.until(lambda: self.revision >= revision, f"revision {revision}")
        return revision

    async def submit(self, *uids: str) -> None:
        """Submit pods without requests."""
        await self.write(
            *(
                PodSubmitted(uid=uid, namespace="default", name=uid, shape=Shape(), dialect="plain")
                for uid in uids
            )
        )

    def chain(self, node: str) -> str:
        """Return the value of `previous` that the node's next placement must have."""
        return self._chain.get(node, "")

    async def submit_unless_there(self, uid: str) -> None:
        """Submit the pod unless it exists, because readers refuse a placement of an unknown pod."""
        if all(pod.uid != uid for pod in self.of(PodSubmitted)):
            await self.submit(uid)

    async def place(
        self,
        uid: str,
        node: str,
        *devices: str,
        attempt: int = 1,
        name: str = "",
        held: bool = False,
    ) -> int:
        """Append a placement with a small share of each device. `name` defaults to the pod's
        uid."""
        return await self.write(
            PodPlaced(
                pod=uid,
                namespace="default",
                name=name or uid,
                attempt=attempt,
                node=node,
                shares=tuple(
                    Share(container="main", device=device, memory_mib=16, cores=0)
                    for device in devices
                ),
                score=Score(node=node, total=1.0),
                previous=self.chain(node),
                held=held,
            )
        )

    async def hold(
        self, uid: str, node: str, *shares: Share, borrowed: tuple[Share, ...] = (),
        bound: bool = True,
    ) -> None:  # fmt: skip
        """Append a placement of the pod with these shares. Submit the pod first if it is unknown.

        The pod's name is its uid. If `bound` is True, also append the pod's binding."""
        placed = PodPlaced(
            pod=uid,
            namespace="default",
            name=uid,
            attempt=1,
            node=node,
            shares=shares,
            score=Score(node=node, total=1.0),
            borrowed=borrowed,
            previous=self.chain(node),
        )
        await self.submit_unless_there(uid)
        await self.write(placed)
        if bound:
            await self.write(PodBound(pod=uid, node=node, attempt=1))

    async def resize(self, uid: str, node: str, *shares: Share) -> None:
        """Append a resize request, and the scheduler's answer that grants these shares."""
        (share, *_) = shares
        asked = await self.write(ResizeAsked(pod=uid, by="ann", memory_mib=share.memory_mib))
        resized = PodResized(
            pod=uid,
            namespace="default",
            name=uid,
            attempt=1,
            node=node,
            asked=asked,
            shares=shares,
            previous=self.chain(node),
        )
        await self.write(resized)


def _event(role: str, identity: str, data: Payload, basis: int) -> Event:
    now = rfc3339(SystemClock().now())
    return Event(id=identity, source=f"test/{role}", time=now, data=data, basis=basis)
