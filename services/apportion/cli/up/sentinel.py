"""The sentinel: a process that outlives `apportion up` to end processes that `up` left.

`up` names process groups on a pipe: `+PID` is a group to end, `-PID` a group that has ended. When
the pipe closes, the sentinel ends all groups still named and the ledger's server. This module uses
only the standard library, to start fast."""

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

DONE = "done\n"  # the last line of an `up` that has ended everything itself
GRACE_S = 5.0
POLL_S = 0.05


def watch(lines: Iterable[str]) -> set[int] | None:
    """Return the process groups still running when the pipe closes; None if `up` ended normally."""
    groups: set[int] = set()
    for line in lines:
        if line == DONE:
            return None
        sign, number = line[:1], line[1:].strip()
        if number.isdecimal() and int(number) > 1:
            (groups.add if sign == "+" else groups.discard)(int(number))
    return groups


def lock_holder(lock: Path) -> int:
    """Return the id of the process that has locked this file, or 0."""
    try:
        with lock.open("r+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                number = file.read().strip()
                return int(number) if number.isdecimal() else 0
    except OSError:
        pass
    return 0


def end(groups: set[int]) -> None:
    """Send SIGTERM to every process group, and SIGKILL to those left after the grace period."""
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = {group for group in left if _signal(group, 0)}
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> None:
    """Watch standard input. The arguments are `DATA [remove]`; `remove` deletes DATA at the end."""
    data = Path(arguments[0])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = watch(sys.stdin)
    if groups is not None:
        server = lock_holder(data / "lock")
        end(groups | {server} if server > 1 else groups)
        (data / "connection.json").unlink(missing_ok=True)
    if arguments[1:] == ["remove"]:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
