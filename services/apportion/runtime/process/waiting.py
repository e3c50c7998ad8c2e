"""Wait for the first of several events, and leave no task behind."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def first_of(*works: Awaitable[T], timeout_s: float | None = None) -> T | None:
    """Wait until one of `works` ends, cancel the others, and return or raise its outcome.

    If several end at the same time, the first argument counts. Returns None after `timeout_s`."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return next((task.result() for task in tasks if task.done()), None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
