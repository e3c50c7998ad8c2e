"""Sets a scheduling policy under which our processes do not preempt others when they wake up.

Each step of a placement wakes the next process. With few CPUs, each wake-up would interrupt a
running process. Invariant: CPU shares stay the same, and an operator's own policy is kept."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator


def interrupt_nobody() -> None:
    """Set a Linux policy that keeps this thread and its children from preempting others."""
    if sys.platform == "linux":  # which alone has SCHED_BATCH, and may forbid it
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def children_that_interrupt_nobody() -> Iterator[None]:
    """Start child processes under SCHED_BATCH in a `with` block; this process stays as it is."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getscheduler(0)
    interrupt_nobody()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, before, os.sched_param(0))


def seldom_look_for_cycles() -> None:
    """Make the garbage collector run less often from now on."""
    # Our objects rarely form cycles; the default took 10 to 20 % of a service's time.
    gc.set_threshold(50_000, 20, 100)
