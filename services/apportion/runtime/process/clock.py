"""The only place that reads the time and draws pauses, so that the simulation can bring its own.

Invariant: wall-clock time is always aware, in UTC and in microseconds; durations are measured on
the monotonic clock, never between two wall-clock times."""

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol


def rfc3339(moment: datetime) -> str:
    """`moment` as RFC 3339 in UTC with microseconds, such as 2026-05-01T12:00:00.000000Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class Clock(Protocol):
    """Where a service gets the time from."""

    def now(self) -> datetime:
        """The wall-clock time: aware, UTC, microseconds."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    async def pause(self, longest_s: float) -> None:
        """Rest for half of `longest_s` to all of it, at random, so that no herd forms."""


class SystemClock:
    """The machine's own clocks, for everything but tests and simulations."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    async def pause(self, longest_s: float) -> None:
        """See Clock."""
        await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load


_DOUBLINGS_MAX: Final = 64  # beyond, a float has long been over any limit, and would overflow


class BackOff(NamedTuple):
    """Pauses in seconds: the first, and the longest.

    Each pause after another failure in a row is twice as long, up to the limit. Invariant: the
    pauses never shrink while failures go on, and never exceed the limit."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause in seconds after so many failures in a row; none after none.

        It is the longest that is meant: `Clock.pause` takes half of it to all of it."""
        if failures < 1:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.longest_s)
