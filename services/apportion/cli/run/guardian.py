"""The guardian: a process that outlives `apportion run` and records the end of its command.

Like a kubelet, it ends the command if the pod is deleted. Invariant: the end is recorded when no
process of the command is visible. If the guardian fails, the next `apportion run` records the
end."""

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
from apportion.runtime.process.lives import lives

BACK_OFF: Final = BackOff(0.5, 30.0)
# between two checks whether the pod was deleted or the command's processes ended
LOOK: Final = BackOff(1.0, 10.0)
GRACE_S: Final = 30.0  # between SIGTERM and SIGKILL, as in a kubelet
PATIENCE_S: Final = 3_600.0
_DESCRIPTORS_MAX: Final = 1_024
_STANDARD: Final = 3  # stdin, stdout and stderr
_WHY_BYTES_MAX: Final = 1_000


class Duty(NamedTuple):
    """The command that a guardian watches."""

    run: Run
    pod: str
    deleted: Callable[[], bool]
    end: Callable[[str], None]  # records the end; may raise ClickException


def leave_behind(duty: Duty) -> Callable[[str], None]:
    """Fork the guardian. Raises OSError.

    Return a function that tells the guardian why the command could not be started."""
    sys.stdout.flush()
    sys.stderr.flush()
    heard, tell = os.pipe()  # closed on exec
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
            # Close the pipes that the caller of the command waits on.
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
    life, looks, deleted_s = duty.run.life, 0, 0.0
    while duty.run.goes_on(duty.pod):
        now_s = time.monotonic()
        if deleted_s or duty.deleted():
            deleted_s = deleted_s or now_s
            number = signal.SIGTERM if now_s - deleted_s < GRACE_S else signal.SIGKILL
            _stop(duty.run, duty.pod, number)
        looks += 1
        try:
            descriptor = os.pidfd_open(life.pid)
        except ProcessLookupError:
            time.sleep(LOOK.after(looks))  # other processes of the command are alive
            continue
        # The pid may have been reused before it was opened.
        select.select([descriptor] if lives(life) else [], [], [], LOOK.after(looks))
        os.close(descriptor)
    why = ""  # or the reason given to `explain`
    os.set_blocking(heard, False)
    with suppress(BlockingIOError):
        why = os.read(heard, _WHY_BYTES_MAX).decode(errors="replace")
    failures, until_s = 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            duty.end(why or "its command has ended")
        except click.ClickException:  # the ledger or the agent is unreachable
            failures += 1
            time.sleep(BACK_OFF.after(failures))
        else:
            return


def _stop(run: Run, pod: str, number: signal.Signals) -> None:
    # An engine's command ends with its container.
    if run.engine and (left := containers(run.engine, pod)):
        subprocess.run((run.engine, "kill", "--signal", number.name, *left), check=False)
        return
    own = {run.life.pid} if lives(run.life) else set[int]()
    for pid in own.union(processes(pod)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
