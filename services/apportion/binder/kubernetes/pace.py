"""How many requests may be with the API server at once: as many as it answers promptly.

More while answers are quick, fewer when it says 429, does not answer, or takes long: doubling until
that happens first, by ones after it, as TCP does. Invariants: there is always room for one; a burst
of slow answers counts once, for it has one cause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apportion.runtime.process.clock import Clock

FIRST = 16.0
LEAST = 1.0
MOST = 64.0
"""An API server lets 200 writes in by default, of all its clients; and each that is under way has a
connection of its own, whose making costs the server as much as two bindings."""
PROMPT_S = 0.1
SLOW_S = 1.0
LESS = 0.7
CALM_S = 0.5
"""After a step down, answers to what was sent before it say nothing new."""


class Pace:
    """A limit that adapts; take a `turn` for each request and say how it was `answered`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calm_until = 0.0
        self._doubling = True
        self.limit = FIRST
        self.in_flight = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for room, in the order of asking, and take it."""
        if self.in_flight >= int(self.limit) or self._waiting:
            ahead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ahead)
            try:
                await ahead
            except asyncio.CancelledError:
                if ahead.done() and not ahead.cancelled():
                    self._release()  # room was given to one who no longer wants it
                raise
        else:
            self.in_flight += 1
        try:
            yield
        finally:
            self._release()

    def answered(self, took_s: float) -> None:
        """The server answered within so many seconds: how many may be under way follows."""
        if took_s > SLOW_S:
            self._slower()
        elif took_s < PROMPT_S:
            more = 1.0 if self._doubling else 1 / self.limit
            self.limit = min(self.limit + more, MOST)

    def refused(self) -> None:
        """The server said that it has too much to do, or nothing at all."""
        self._slower()

    def _slower(self) -> None:
        self._doubling = False
        now_s = self._clock.monotonic()
        if now_s >= self._calm_until:
            self._calm_until = now_s + CALM_S
            self.limit = max(self.limit * LESS, LEAST)

    def _release(self) -> None:
        self.in_flight -= 1
        while self._waiting and self.in_flight < int(self.limit):
            ahead = self._waiting.popleft()
            if not ahead.done():
                self.in_flight += 1
                ahead.set_result(None)
