"""Which life of a process id is meant: the kernel gives an id again, but at another time.

Invariant: an id with its starting time names one process of this boot, and no other."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

PROC: Final = Path("/proc")
_PARENT, _STARTED = 1, 19
"""Of the fields of `/proc/PID/stat` after the name, which may have anything in it; see proc(5)."""
_STATE, _DEAD = 0, ("Z", "X", "x")
_FLAGS, _OF_KERNEL, _EXITS = 6, 0x0020_0000, 0x4
"""`PF_KTHREAD` and `PF_EXITING` of the kernel's sched.h: these have no environment to come."""
_CODE_TO, _FROM, _TO = 24, 47, 48
"""Where the code ends in memory, which `execve` sets last, and where the environment is."""
_EXEC_S: Final = 10.0
"""The longest wait for one process to become its new program, which takes microseconds."""


class Life(Struct, frozen=True):
    """One process of this boot. `started` is in ticks of the kernel's clock since then."""

    pid: int
    started: int


def life_of(pid: int, proc: Path = PROC) -> Life | None:
    """The process of this id now; None where there is none, or only its exit code is left."""
    fields = _fields(pid, proc)
    if not fields or fields[_STATE] in _DEAD:
        return None
    return Life(pid, int(fields[_STARTED]))


def parent_of(pid: int, proc: Path = PROC) -> int:
    """The id of its parent; 0 where there is no such process, or nothing above it."""
    fields = _fields(pid, proc)
    return int(fields[_PARENT]) if fields else 0


def lives(life: Life, proc: Path = PROC) -> bool:
    """Whether it has not ended."""
    return life_of(life.pid, proc) == life


def marked(variable: str, proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """The processes that have this variable in their environment, each with its value.

    Those of other users only root sees. A process that has emptied its environment is not among
    them; one that is just becoming another program is waited for."""
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
    """Raises OSError where there is no such process, or it is another user's.

    The kernel shows an empty one from the moment that `execve` drops the old program until it has
    laid out the new one, so an empty one is believed only where it is empty in memory as well."""
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
