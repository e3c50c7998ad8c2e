"""Who interrupts whom: a process of ours that wakes lets another finish what it is at.

A pod passes through half a dozen processes, and each wakes the next. Where there are processors
enough nothing changes. Where there are not, every event would stop somebody in the middle of work,
who finds the caches cold when it goes on; as it is, events gather meanwhile and are taken together.
Invariants: nobody gets more or less of the processor than before; what an operator has set stays.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import Final


def interrupt_nobody() -> None:
    """Let this thread, and all that it starts, wait for a processor that is free.

    Linux alone has such a policy (`SCHED_BATCH`), and may forbid it; it is a matter of speed only.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def children_that_interrupt_nobody() -> Iterator[None]:
    """What is started in here interrupts nobody; we ourselves go on as before."""
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


_THRESHOLDS: Final = (50_000, 20, 100)


def seldom_look_for_cycles() -> None:
    """Collect garbage after many objects only, from now on.

    Nearly all that a process of ours allocates is kept, or dropped without a cycle. Looking after
    every 700 objects, as the interpreter does, took a tenth to a fifth of the processor time of a
    service."""
    gc.set_threshold(*_THRESHOLDS)
