"""Waiting for a condition: the one place in the tests that may sleep.

A test names what it waits for and how long at most; it goes on as soon as the condition holds, and
otherwise fails with the last value seen. Invariant: the last look begins after that time, so a
machine that stood still for all of it fails nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.02
WAIT_S = 120
"""Long enough for a machine on which five lanes run at once; a wait ends with what it waits for."""


def wait_until(
    check: Callable[[], T], what: str, *, timeout_s: float = WAIT_S, interval_s: float = INTERVAL_S
) -> T:
    """The first truthy result of `check`; AssertionError naming `what` after `timeout_s`."""
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
    """The first truthy result of awaiting `check`; AssertionError naming `what` after that."""
    deadline = time.monotonic() + timeout_s
    late = False
    while not (seen := await check()):
        if late:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {seen!r}")
        await asyncio.sleep(interval_s)
        late = time.monotonic() > deadline
    return seen
