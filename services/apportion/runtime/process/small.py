"""A process that runs on every node is to be small.

glibc gives threads heaps of their own, which never shrink, and keeps what was freed: some megabytes
after imports, for the few files that our threads read, and after every burst of pods. The libraries
that we load are large, and most of their code runs once, when they are loaded. Invariant: only
where memory comes from changes, and only of this process.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from apportion.runtime.process.clock import Clock

GIVEN_BACK_S: Final = 30.0
_M_ARENA_MAX: Final = -8
"""See mallopt(3)."""
_MADV_DONTNEED: Final = 4
_CODE: Final = "r-xp"
"""Of mappings in proc(5): the kernel reads these pages from their file again when needed."""
_WRITTEN: Final = frozenset({"Anonymous:", "Swap:"})
"""Pages of a mapping that are no longer those of its file."""


def share_one_heap() -> None:
    """Let all threads allocate from one heap; another C library than glibc stays as it is."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


async def give_back(clock: Clock) -> None:
    """Return to the system what the process has freed, now and every so often, until cancelled.

    What is there at the first time mostly stays: later looks for cycles pass it over, which takes
    them from 30 milliseconds to one. See malloc_trim(3) and madvise(2).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    library = ctypes.CDLL(None)
    for start, end in _code():
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
    while True:
        with suppress(AttributeError):
            library.malloc_trim(0)
        await clock.pause(GIVEN_BACK_S)
        gc.collect()


def _code() -> Iterator[tuple[int, int]]:
    """Where the code of this process's libraries is, unless something has written to it.

    Pages that were written to (a library with text relocations) would be lost. Source: smaps of
    proc(5), where `VmFlags` is the last line of each mapping.
    """
    place, code, written = "", False, 0
    with suppress(OSError):
        for line in Path("/proc/self/smaps").read_text().splitlines():
            first, *more = line.split(maxsplit=5)
            if "-" in first:
                place, written = first, 0
                code = more[0] == _CODE and more[-1].startswith("/")
            elif first in _WRITTEN:
                written += int(more[0])
            elif first == "VmFlags:" and code and not written:
                start, _, end = place.partition("-")
                yield int(start, 16), int(end, 16)
