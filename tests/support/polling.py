"""Wait for a condition. This is the only module of the tests that may sleep.

A test names the condition and the maximum time to wait. The test continues as soon as the condition
holds, and otherwise fails with the last value seen. Invariant: the last check starts after the
timeout, so that a stalled machine fails no test."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.02
WAIT_S = 120
"""Long enough for a machine that runs five groups of tests at once."""


def wait_until(
    check: Callable[[], T], what: str, *, timeout_s: float = WAIT_S, interval_s: float = INTERVAL_S
) -> T:
    """Call `check` until its result is truthy, and return the result.

    Raises AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    late = False
    while not (seen := check()):
        if late:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {seen!r}")
        time.sleep(interval_s)
        late = time.monotonic() > deadline
    return seen


async def until(
    check: Callable[[], Awaitable[T]],
    what: str,
    *,
    timeout_s: float = WAIT_S,
    interval_s: float = INTERVAL_S,
) -> T:
    """Await `check` until its result is truthy, and return the result.

    Raises AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    late = False
    while not (seen := await check()):
        if late:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {seen!r}")
        await asyncio.sleep(interval_s)
        late = time.monotonic() > deadline
    return seen
