"""Memory tuning: huge pages for a large heap, and a small heap for agents.

The state of thousands of nodes is read in random order, and with 4 KiB pages address translation
takes longer than the reads. glibc gives each thread a heap that never shrinks. Invariant: only
areas at least 90 % in use become huge pages, which limits the extra memory."""

import asyncio
import contextlib
import ctypes
import gc
import mmap
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from apportion.runtime.process.clock import Clock

PAGE: Final = 2 << 20
EVERY_S: Final = 10.0
WORTH: Final = 256 << 20  # bytes; a smaller process does not gain from huge pages
GROWN: Final = 64 << 20  # bytes that the process must have grown since the last time
DENSE: Final = 0.9  # the part of an area that must be in use
MADV_HUGEPAGE: Final = 14  # Linux: the kernel may gather these pages, as time allows
MADV_COLLAPSE: Final = 25  # Linux 6.1: gather them now
_ENABLED: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HELD: Final = Path("/proc/self/statm")
_AREAS: Final = Path("/proc/self/smaps")
_AREA: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?\n(?:.*\n)*?Rss: +(\d+) kB$",
    re.MULTILINE,
)


async def keep_in_huge_pages(clock: Clock) -> None:
    """Move the heap into huge pages each time it has grown by `GROWN`, until cancelled."""
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
    """Return the resident memory of this process in bytes, from statm in proc(5)."""
    return int(_HELD.read_text().split()[1]) * mmap.PAGESIZE


def gather() -> None:
    """Move the heap of a large process into huge pages if the system allows huge pages."""
    if _held() < WORTH or not _ENABLED.exists() or "[never]" in _ENABLED.read_text():
        return
    madvise = ctypes.CDLL(None).madvise
    for area in _AREA.finditer(_AREAS.read_text(errors="replace")):  # anonymous; see proc(5)
        begin, end = int(area[1], 16), int(area[2], 16)
        if int(area[3]) * 1024 < DENSE * (end - begin):
            continue
        first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        for advice in (MADV_HUGEPAGE, MADV_COLLAPSE) if first < last else ():
            # An older kernel refuses an advice that it does not know.
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


GIVEN_BACK_S: Final = 30.0
_M_ARENA_MAX: Final = -8  # see mallopt(3)
_MADV_DONTNEED: Final = 4
_CODE: Final = "r-xp"  # a mapping whose pages the kernel rereads from their file; proc(5)
_WRITTEN: Final = frozenset({"Anonymous:", "Swap:"})  # pages that differ from their file


def share_one_heap() -> None:
    """Make all threads allocate from one heap. Does nothing without glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


async def give_back(clock: Clock) -> None:
    """Return freed memory to the system, now and at intervals, until cancelled."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # later collections skip what exists now: they take 1 ms instead of 30
    library = ctypes.CDLL(None)
    for start, end in _code():
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
    while True:
        with suppress(AttributeError):
            library.malloc_trim(0)
        await clock.pause(GIVEN_BACK_S)
        gc.collect()


def _code() -> Iterator[tuple[int, int]]:
    # A mapping that was written to (text relocations) would be lost. Source: smaps in proc(5),
    # where `VmFlags` is the last line of each mapping.
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
