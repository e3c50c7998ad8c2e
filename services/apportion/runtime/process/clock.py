"""The only module that reads the time; simulations replace it.

Invariant: wall-clock times are timezone-aware, in UTC, in microseconds. Durations come from the
monotonic clock, never from two wall-clock times."""

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol


def rfc3339(moment: datetime) -> str:
    """Format `moment` in UTC with microseconds, such as 2026-05-01T12:00:00.000000Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def rfc3339_of(at_s: float) -> str:
    """Format seconds since 1970 as `rfc3339` does."""
    return rfc3339(datetime.fromtimestamp(at_s, UTC))


class Clock(Protocol):
    """The source of time for a service."""

    def now(self) -> datetime:
        """Return the wall-clock time, timezone-aware in UTC, in microseconds."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. The value never decreases."""

    async def pause(self, longest_s: float) -> None:
        """Sleep for a random 50 to 100 % of `longest_s`, to avoid thundering herds."""


class SystemClock:
    """The machine's own clocks; tests and simulations use other clocks."""

    def now(self) -> datetime:
        """Return the machine's wall-clock time; see `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic time in seconds; see `Clock.monotonic`."""
        return time.monotonic()

    async def pause(self, longest_s: float) -> None:
        """Sleep for a random 50 to 100 % of `longest_s`."""
        await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load


_DOUBLINGS_MAX: Final = 64  # beyond any limit in seconds; many more would overflow a float


class BackOff(NamedTuple):
    """Exponential back-off: `first_s` doubles with each failure, up to `longest_s`."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Return the pause in seconds after `failures` failures in a row; 0 without failures."""
        if failures < 1:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.longest_s)
