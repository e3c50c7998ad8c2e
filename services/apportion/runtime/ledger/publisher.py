"""Writing to the ledger: payloads to events to drafts, the same way in every service.

Invariants: nothing is appended that a reader would refuse; an event's id is its caller's and never
drawn at random, so whoever writes the same fact again writes it once; and that makes trying again
safe, so a ledger that is away or full delays a writer and does not end it."""

import logging
from collections.abc import Awaitable, Callable

from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, LedgerFull, LedgerUnavailable, OutcomeUnknown
from apportion.runtime.process.clock import BackOff, Clock, SystemClock, rfc3339
from apportion_schemas import Event, encode, subject_of
from apportion_schemas.quantities import Payload

BACK_OFF = BackOff(0.1, 5.0)

_log = logging.getLogger(__name__)
Append = Callable[[Draft], Awaitable[Appended]]


class Insistence:
    """An append that does not give up while the ledger is merely away or full."""

    def __init__(self, append: Append, clock: Clock | None = None) -> None:
        self._append = append
        self._clock = clock or SystemClock()
        self._stuck = False

    async def append(self, draft: Draft) -> Appended:
        """Append and return once it is durable.

        Raises LedgerError: of the kinds that trying again cannot cure."""
        failures = 0
        while True:
            try:
                appended = await self._append(draft)
            except (LedgerUnavailable, LedgerFull, OutcomeUnknown) as error:
                if not self._stuck:
                    _log.warning("appending waits: %s", error)
                self._stuck = True
                asked_s = error.again_s if isinstance(error, LedgerUnavailable) else 0.0
            else:
                if self._stuck:
                    _log.info("appending goes on")
                self._stuck = False
                return appended
            failures += 1
            await self._clock.pause(max(asked_s, BACK_OFF.after(failures)))


class Publisher:
    """What one writer says, under its name (`source`, as in `agent/node-1`)."""

    def __init__(self, source: str, clock: Clock, append: Append) -> None:
        self._source = source
        self._clock = clock
        self._append = append

    def time(self) -> str:
        """The time now, as events tell it."""
        return rfc3339(self._clock.now())

    def draft(
        self,
        data: Payload,
        *,
        event_id: str,
        basis: int,
        cause: int = 0,
        expect: int | None = None,
        time: str | None = None,
    ) -> Draft:
        """The event, ready to append.

        `basis` is the revision that the writer had folded, `cause` the one that made it write;
        `expect` is the fence (see `Draft`), and `time` that of a batch, which is now if not given.

        Raises InvalidEvent: the payload breaks its schema."""
        event = Event(
            id=event_id,
            source=self._source,
            time=time or self.time(),
            data=data,
            basis=basis,
            cause=cause,
        )
        return Draft(subject_of(data), event_id, encode(event), expect)

    async def publish(
        self, data: Payload, *, event_id: str, basis: int, cause: int = 0, time: str | None = None
    ) -> Appended:
        """Append the event; an event of this id that is on the ledger already is success.

        Raises InvalidEvent, and what `append` raises."""
        return await self._append(
            self.draft(data, event_id=event_id, basis=basis, cause=cause, time=time)
        )
