"""Where the memory of a process comes from: huge pages for a large heap, and a small heap for an
agent, which runs on every node.

A state of thousands of nodes is read at random, and to find where a page of 4 KiB is takes a
processor longer than to read from it, most of all in a virtual machine; of 2 MiB there are so few
that it knows them all. Python asks for none by itself.

glibc gives threads heaps of their own, which never shrink, and keeps what was freed: some megabytes
after imports, for the few files that our threads read, and after every burst of pods. The libraries
that we load are large, and most of their code runs once, when they are loaded.

Invariants: an area of which a tenth is not in use stays as it is, so that is the most that huge
pages take; where the system has no huge pages, or is configured to give none, nothing changes; and
only where memory comes from changes, and only of this process."""

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


async def keep_in_huge_pages(clock: Clock) -> None:
    """Gather what has come to the heap, again and again; beside the event loop.

    Seldom: while pages are gathered, nobody may come to new memory."""
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
    for area in _AREA.finditer(_AREAS.read_text(errors="replace")):  # anonymous; see proc(5)
        begin, end = int(area[1], 16), int(area[2], 16)
        if int(area[3]) * 1024 < DENSE * (end - begin):
            continue
        first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        for advice in (MADV_HUGEPAGE, MADV_COLLAPSE) if first < last else ():
            # A kernel that does not know one refuses it.
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


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
    them from 30 milliseconds to one. See malloc_trim(3) and madvise(2)."""
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
    proc(5), where `VmFlags` is the last line of each mapping."""
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
