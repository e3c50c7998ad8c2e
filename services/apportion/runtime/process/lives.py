"""Identifies processes by id and start time, because the kernel reuses ids.

Invariant: an id together with its start time identifies one process of this boot."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

PROC: Final = Path("/proc")
# Indices into the fields of `/proc/PID/stat` after the name, which may contain anything; proc(5).
_PARENT, _STARTED = 1, 19
_STATE, _DEAD = 0, ("Z", "X", "x")
# `PF_KTHREAD` and `PF_EXITING` of the kernel's sched.h: such processes never get an environment.
_FLAGS, _OF_KERNEL, _EXITS = 6, 0x0020_0000, 0x4
# The end of the code, which `execve` sets last, and the bounds of the environment in memory.
_CODE_TO, _FROM, _TO = 24, 47, 48
_EXEC_S: Final = 10.0  # the longest wait for one `execve`, which takes microseconds


class Life(Struct, frozen=True):
    """One process of this boot: its id, and its start time in kernel clock ticks since the boot."""

    pid: int
    started: int


def life_of(pid: int, proc: Path = PROC) -> Life | None:
    """Return the process that has this id now, or None if there is none or only a zombie."""
    fields = _fields(pid, proc)
    if not fields or fields[_STATE] in _DEAD:
        return None
    return Life(pid, int(fields[_STARTED]))


def parent_of(pid: int, proc: Path = PROC) -> int:
    """Return the id of a process's parent, or 0 if the process or the parent does not exist."""
    fields = _fields(pid, proc)
    return int(fields[_PARENT]) if fields else 0


def lives(life: Life, proc: Path = PROC) -> bool:
    """Return True if the process still runs."""
    return life_of(life.pid, proc) == life


def marked(variable: str, proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield id and value for each process that has this variable in its environment.

    Only root sees other users' processes. Waits for a process in the middle of `execve`."""
    before = f"{variable}=".encode()
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environment = _environment(int(folder.name), proc)
        except OSError:
            continue  # another user's, or it has ended
        for line in environment.split(b"\0"):
            if line.startswith(before):
                yield int(folder.name), line[len(before) :].decode(errors="replace")


def _environment(pid: int, proc: Path) -> bytes:
    # The kernel shows an empty environment while `execve` replaces the program. So an empty one
    # counts only if it is empty in memory as well.
    until_s = time.monotonic() + _EXEC_S
    while not (environment := (proc / str(pid) / "environ").read_bytes()):
        fields = _fields(pid, proc)
        if len(fields) <= _TO or fields[_STATE] in _DEAD:
            break
        without = int(fields[_FLAGS]) & (_OF_KERNEL | _EXITS)
        empty = fields[_CODE_TO] != "0" and fields[_FROM] == fields[_TO]
        if without or empty or time.monotonic() > until_s:
            break
        time.sleep(0.001)
    return environment


def _fields(pid: int, proc: Path) -> list[str]:
    try:
        text = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
