"""A process that runs on every node is to be small.

glibc gives threads heaps of their own, which never shrink, and keeps what was freed: some megabytes
after imports and for the few files that our threads read. Invariant: only where memory comes from
changes, and only of this process.
"""

import ctypes
import gc
from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8
"""See mallopt(3)."""


def share_one_heap() -> None:
    """Let all threads allocate from one heap; another C library than glibc stays as it is."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Let the system have what the process has freed since it began; see malloc_trim(3)."""
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
