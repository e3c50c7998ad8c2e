"""The period of a report, as people ask for it.

Invariant: a period begins before it ends, ends no later than now, and has a bounded number of
steps.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from apportion.core.ledger.moments import SECOND
from apportion.core.reports.report import Period
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.moments import MomentError, parse_moment

DAY: Final = timedelta(days=1)
STEPS_MAX: Final = 2_000
_STEP: Final = re.compile(r"(\d{1,9})([smhd])").fullmatch
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PeriodError(ValueError):
    """The period cannot be; `field` is the parameter that is wrong, `fix` what to do."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        self.field, self.rest, self.fix = field, f": {problem}", fix
        super().__init__(f"{field}{self.rest}")


async def period_of(wire: Wire, start: str, end: str, step: str, *, now: datetime) -> Period:
    """The period from `start` (a day before its end unless told) to `end` (now unless told).

    Raises:
        PeriodError: a moment or the step cannot be. LedgerUnavailable.
    """
    last = await _micros(wire, "to", end, now) if end else micros_since(now)
    first = (
        await _micros(wire, "from", start, now)
        if start
        else last - int(DAY.total_seconds()) * SECOND
    )
    if first >= last:
        raise PeriodError(
            "from", f"{start!r} is not before {end or 'now'!r}", "begin before the end"
        )
    length = _step_of(step) * SECOND
    if length and (last - first) // length >= STEPS_MAX:
        raise PeriodError(
            "step", f"{step!r} makes more than {STEPS_MAX:,} steps", "use longer steps"
        )
    return Period(first, last, length)


def micros_since(time: datetime) -> int:
    """An aware time as whole microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def _step_of(text: str) -> int:
    """Seconds; 0 for no steps."""
    match = _STEP(text)
    if text and (match is None or not int(match[1])):
        raise PeriodError(
            "step", f"{text[:40]!r} is no step", "write a number of s, m, h or d: 15m, 1h, 1d"
        )
    return int(match[1]) * _SECONDS[match[2]] if match else 0


async def _micros(wire: Wire, field: str, text: str, now: datetime) -> int:
    try:
        moment = parse_moment(text, now)
    except MomentError as error:
        raise PeriodError(field, str(error), error.fix) from None
    if moment.time is not None:
        return micros_since(moment.time)
    stored_at = await stream.read_stored_at(wire, moment.revision or 0)
    if stored_at is None:
        raise PeriodError(
            field,
            f"the ledger has no event at revision {moment.revision}",
            "see `apportion ledger check` for the revisions that there are, or give a time",
        )
    return micros_since(stored_at)
