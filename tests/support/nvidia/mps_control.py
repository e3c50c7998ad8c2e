"""A stand-in for `nvidia-cuda-mps-control`, with one daemon per pipe directory.

`-d` starts the daemon and `-f` is the daemon itself. Without an option, the program sends the
commands on its standard input to the daemon. It fails if no daemon runs. Invariant: the commands
have taken effect when the program ends."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TextIO

FOLDER = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - its own
PIPE = FOLDER / "control"
PID = FOLDER / "nvidia-cuda-mps-control.pid"
THREADS = FOLDER / "threads"
SIZE = re.compile(r"\d+[KMGkmg]?B?")
NO_LIMIT = "0"


def say(line: object) -> None:
    """Print one line of the daemon's answer to a command."""
    sys.stdout.write(f"{line}\n")


def lock() -> TextIO | None:
    """Lock this folder for one daemon, and return the lock, or None if another daemon has it."""
    held = (FOLDER / "control_lock").open("a")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


def serve(ready: int | None) -> None:
    """Run as the daemon until the command `quit`.

    Close the file descriptor `ready` once commands are accepted."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    held = lock()
    if held is None:
        sys.exit("An instance of this daemon is already running")
    PIPE.unlink(missing_ok=True)
    os.mkfifo(PIPE)
    THREADS.write_text("100.0")
    PID.write_text(str(os.getpid()))
    if ready is not None:
        os.close(ready)
    while PIPE.read_text() != "quit":  # opens again for every writer
        pass
    for left in (PIPE, PID, THREADS, *FOLDER.glob("limit-*")):
        left.unlink(missing_ok=True)


def start() -> None:
    """Start the daemon as a separate process."""
    if lives():
        sys.exit("An instance of this daemon is already running")
    readable, ready = os.pipe()
    daemon = subprocess.Popen(
        [sys.executable, __file__, "-f", str(ready)],
        pass_fds=[ready],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(ready)
    os.read(readable, 1)  # returns when the daemon is ready or dead
    if not PID.exists() or PID.read_text() != str(daemon.pid):
        sys.exit(daemon.wait() or 1)


def lives() -> bool:
    """Return True if a daemon runs for this pipe directory."""
    if not FOLDER.is_dir():
        return False
    held = lock()
    if held is None:
        return True
    held.close()
    return False


def obey(line: str) -> None:
    """Run one command from standard input."""
    match line.split():
        case ["set_default_device_pinned_mem_limit", device, size] if SIZE.fullmatch(size):
            (FOLDER / f"limit-{int(device)}").write_text(size)
        case ["get_default_device_pinned_mem_limit", device]:
            limit = FOLDER / f"limit-{int(device)}"
            say(limit.read_text() if limit.exists() else NO_LIMIT)
        case ["set_default_active_thread_percentage", percent] if 0 < float(percent) <= 100:
            THREADS.write_text(str(float(percent)))
            say(float(percent))
        case ["get_default_active_thread_percentage"]:
            say(THREADS.read_text())
        case ["get_server_list"] | []:
            pass
        case ["quit"] | ["quit", "-t", _]:
            PIPE.write_text("quit")
            lock_until_gone()
        case _:
            sys.exit(f"Unknown command: {line.strip()}")


def lock_until_gone() -> None:
    """Wait until the daemon has ended and has released its lock."""
    with (FOLDER / "control_lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)


def main(arguments: list[str]) -> None:
    """Run the program with these command-line arguments; see the module's docstring."""
    match arguments:
        case ["-d"]:
            start()
        case ["-f", *ready]:
            serve(int(ready[0]) if ready else None)
        case []:
            if not lives():
                sys.exit("Cannot find MPS control daemon process")
            for line in sys.stdin:
                obey(line)
        case _:
            sys.exit(f"Unknown option: {' '.join(arguments)}")


if __name__ == "__main__":
    main(sys.argv[1:])
