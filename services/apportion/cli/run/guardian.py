"""Who stays behind when `apportion run` becomes its command, to say in the ledger that it ended.

A process of its own, which the command does not see as a child. It also ends the command when
somebody deletes its pod, as a kubelet does. Invariant: the end is written once nothing of the
command is seen to run any more, however it ended; where that cannot be written for an hour, the
next `apportion run` on this machine does it."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import click

from apportion.cli.pods.local_process import Run, containers, processes
from apportion.runtime.process.clock import BackOff
from apportion.runtime.process.lives import Life, lives

BACK_OFF: Final = BackOff(0.5, 30.0)
LOOK: Final = BackOff(1.0, 10.0)
"""Between two looks whether the pod was deleted, or whether what the command left behind ended."""
GRACE_S: Final = 30.0
"""Between SIGTERM and SIGKILL; a kubelet leaves as much."""
PATIENCE_S: Final = 3_600.0
_DESCRIPTORS_MAX: Final = 1_024
_STANDARD: Final = 3
"""Descriptors of every process: its input, and its two outputs."""
_WHY_BYTES_MAX: Final = 1_000


class Duty(NamedTuple):
    """What a guardian is there for.

    `deleted` says whether somebody has deleted the pod, whose command is then ended; `end` writes
    into the ledger that all of it has ended, and why, and raises ClickException where it cannot."""

    run: Run
    pod: str
    deleted: Callable[[], bool]
    end: Callable[[str], None]


def leave_behind(duty: Duty) -> Callable[[str], None]:
    """Do it in another process, which outlives this one.

    Returns what tells it why this one ends, where it does not become the command.

    Raises OSError: no more processes can be started."""
    sys.stdout.flush()
    sys.stderr.flush()
    heard, tell = os.pipe()  # closed by whatever this process becomes
    try:
        first = os.fork()
    except OSError:
        os.close(heard)
        os.close(tell)
        raise
    if first:
        os.close(heard)
        os.waitpid(first, 0)

        def explain(why: str) -> None:
            with suppress(BrokenPipeError):  # the guardian was killed
                os.write(tell, why.encode()[:_WHY_BYTES_MAX])

        return explain
    try:
        os.setsid()
        if os.fork() == 0:
            why = fcntl.fcntl(heard, fcntl.F_DUPFD_CLOEXEC, _STANDARD)
            # Close what a parent of the command waits for.
            os.closerange(0, why)
            os.closerange(why + 1, _DESCRIPTORS_MAX)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(nothing, descriptor)
            os.chdir("/")
            _guard(duty, why)
    finally:
        os._exit(0)


def _guard(duty: Duty, heard: int) -> None:
    looks, deleted_s = 0, 0.0
    while duty.run.goes_on(duty.pod):
        now_s = time.monotonic()
        if deleted_s or duty.deleted():
            deleted_s = deleted_s or now_s
            _stop(duty, signal.SIGTERM if now_s - deleted_s < GRACE_S else signal.SIGKILL)
        looks += 1
        _await_end(duty.run.life, LOOK.after(looks))
    why = ""  # or what was told before the writer ended
    os.set_blocking(heard, False)
    with suppress(BlockingIOError):
        why = os.read(heard, _WHY_BYTES_MAX).decode(errors="replace")
    failures, until_s = 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            duty.end(why or "its command has ended")
        except click.ClickException:  # the ledger or the agent is away
            failures += 1
            time.sleep(BACK_OFF.after(failures))
        else:
            return


def _await_end(life: Life, timeout_s: float) -> None:
    """Return when the process has ended, or after that time: at once only if it has not before."""
    try:
        descriptor = os.pidfd_open(life.pid)
    except ProcessLookupError:
        time.sleep(timeout_s)  # others of the command go on
        return
    # A name for the process itself: whatever gets its id later is another one.
    if lives(life):
        select.select([descriptor], [], [], timeout_s)
    else:
        time.sleep(timeout_s)
    os.close(descriptor)


def _stop(duty: Duty, number: signal.Signals) -> None:
    """Tell all that is seen of it to end; the command of an engine ends with its container."""
    run, pod = duty.run, duty.pod
    if run.engine and (left := containers(run.engine, pod)):
        subprocess.run((run.engine, "kill", "--signal", number.name, *left), check=False)
        return
    own = {run.life.pid} if lives(run.life) else set[int]()
    for pid in own.union(processes(pod)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
