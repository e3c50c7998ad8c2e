"""Turns payloads into events and appends them, the same way in every service.

Invariants: no event is appended that a reader would refuse. The caller derives an event's id from
the fact, never at random, so appending the same fact again is safe and stores it once."""

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
    """Appends a draft and retries as long as the ledger is unavailable or full."""

    def __init__(self, append: Append, clock: Clock | None = None) -> None:
        self._append = append
        self._clock = clock or SystemClock()
        self._stuck = False

    async def append(self, draft: Draft) -> Appended:
        """Append the draft and retry until it is stored. Raises LedgerErrors that persist."""
        failures = 0
        while True:
            try:
                appended = await self._append(draft)
            except (LedgerUnavailable, LedgerFull, OutcomeUnknown) as error:
                if not self._stuck:
                    _log.warning("append delayed, retrying: %s", error)
                self._stuck = True
                asked_s = error.again_s if isinstance(error, LedgerUnavailable) else 0.0
            else:
                if self._stuck:
                    _log.info("appends work again")
                self._stuck = False
                return appended
            failures += 1
            await self._clock.pause(max(asked_s, BACK_OFF.after(failures)))


class Publisher:
    """A writer of events, whose name is in each event's `source`, such as `agent/node-1`."""

    def __init__(self, source: str, clock: Clock, append: Append) -> None:
        self._source = source
        self._clock = clock
        self._append = append

    def time(self) -> str:
        """Return the current time in the format that events use."""
        return rfc3339(self._clock.now())

    def draft(
        self,
        data: Payload,
        *,
        event_id: str,
        basis: int,  # the revision that the writer had folded
        cause: int = 0,  # the revision of the event that made it write
        expect: int | None = None,
        time: str | None = None,  # of a batch; now if None
    ) -> Draft:
        """Build an event that is ready to append. Raises InvalidEvent."""
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
        """Append an event unless it is already stored. Raises InvalidEvent, LedgerError."""
        return await self._append(
            self.draft(data, event_id=event_id, basis=basis, cause=cause, time=time)
        )
