"""Records out of a work queue: a fetch ends with a part of them where the server pauses."""

from __future__ import annotations

import asyncio

from apportion.runtime.ledger.port import Delivery, WorkQueue
from tests.support.polling import WAIT_S


async def taken(queue: WorkQueue, count: int) -> list[Delivery]:
    """So many records, in however many parts they come; TimeoutError where they do not."""
    found: list[Delivery] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await queue.fetch(count - len(found), 1)
    return found
