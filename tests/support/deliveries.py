"""Fetch a given number of records from a work queue, with as many fetches as needed."""

from __future__ import annotations

import asyncio

from apportion.runtime.ledger.port import Delivery, WorkQueue
from tests.support.polling import WAIT_S


async def taken(queue: WorkQueue, count: int) -> list[Delivery]:
    """Fetch from the queue until there are `count` records, and return them.

    Raises TimeoutError if they do not arrive in time."""
    found: list[Delivery] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await queue.fetch(count - len(found), 1)
    return found
