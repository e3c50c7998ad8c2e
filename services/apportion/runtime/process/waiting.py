"""Wait for the first of several events, end tasks, and leave no task behind."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
CANCEL_AGAIN_S = 0.1


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


async def end(task: asyncio.Task[T]) -> None:
    """Cancel a task, and wait until it has ended. Its outcome is ignored.

    The task is cancelled again until it ends, because up to Python 3.11 `asyncio.wait_for` can lose
    a cancellation, and a task that retries without end would then continue."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)
