"""Preparing and tidying up do not meet: what somebody is about to use is not taken for left over.

A round of tidying reads who is there and takes away what nobody has, with time in between. A pod
that comes in that time may be given what lies there. Invariant: no preparation begins while a round
goes on, and no round while a preparation does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Rounds:
    """The turns of one node: preparations go on beside each other, a round alone."""

    def __init__(self) -> None:
        self._round = asyncio.Lock()
        self._preparing = 0

    @asynccontextmanager
    async def preparing(self) -> AsyncIterator[None]:
        """A preparation; it waits for the end of a round."""
        async with self._round:
            self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    @asynccontextmanager
    async def tidying(self) -> AsyncIterator[bool]:
        """A round, or False where something is being prepared: there is a next round."""
        async with self._round:
            yield self._preparing == 0
