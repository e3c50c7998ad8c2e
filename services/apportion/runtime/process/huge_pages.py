"""The heap in huge pages.

A state of thousands of nodes is read at random, and to find where a page of 4 KiB is takes a
processor longer than to read from it, most of all in a virtual machine; of 2 MiB there are so few
that it knows them all. Python asks for none by itself.

Invariant: an area of which a tenth is not in use stays as it is, so that is the most that this
takes; and where the system has no huge pages, or is told to give none, nothing changes.
"""

import asyncio
import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from apportion.runtime.process.clock import Clock

PAGE: Final = 2 << 20
EVERY_S: Final = 10.0
WORTH: Final = 256 << 20  # bytes of a process; of less a processor finds the pages soon enough
GROWN: Final = 64 << 20  # bytes that came since
DENSE: Final = 0.9  # what of an area must be in use already
MADV_HUGEPAGE: Final = 14  # Linux: the kernel may gather these pages, as time allows
MADV_COLLAPSE: Final = 25  # Linux 6.1: gather them now
_ENABLED: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HELD: Final = Path("/proc/self/statm")
_AREAS: Final = Path("/proc/self/smaps")
_AREA: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?\n(?:.*\n)*?Rss: +(\d+) kB$",
    re.MULTILINE,
)


async def keep(clock: Clock) -> None:
    """Gather what has come to the heap, again and again; beside the event loop.

    Seldom: while pages are gathered, nobody may come to new memory.
    """
    gathered = 0
    while True:
        await clock.pause(EVERY_S)
        with contextlib.suppress(OSError):  # it only makes us faster
            held = _held()
            if held >= gathered + GROWN:
                await asyncio.to_thread(gather)
                gathered = held
            gathered = min(gathered, held)


def _held() -> int:
    """The memory of this process, in bytes; see proc(5)."""
    return int(_HELD.read_text().split()[1]) * mmap.PAGESIZE


def gather() -> None:
    """Gather the pages of a large process's heap into huge ones, where it may and can."""
    if _held() < WORTH or not _ENABLED.exists() or "[never]" in _ENABLED.read_text():
        return
    madvise = ctypes.CDLL(None).madvise
    for begin, end in _dense_areas():
        for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):  # a kernel that knows one not refuses it
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


def _dense_areas() -> Iterator[tuple[int, int]]:
    """Where huge pages fit into the anonymous areas that are in use; see proc(5)."""
    for area in _AREA.finditer(_AREAS.read_text(errors="replace")):
        begin, end = int(area[1], 16), int(area[2], 16)
        if int(area[3]) * 1024 >= DENSE * (end - begin):
            first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
            if first < last:
                yield first, last
