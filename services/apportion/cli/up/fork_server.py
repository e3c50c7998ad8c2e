"""The process that the services of `apportion up` are forks of: it imports what they need, once.

Four services share nine tenths of what they import, which is most of what their start costs. Each
is forked off when all of that is there, and is from then on the process that its verb makes of it.
`multiprocessing` has a fork server too, which cannot be told to end, and with it its children.

    python -m apportion.cli.up.fork_server MODULE...       orders come on standard input, a socket

Invariants: a fork has named itself to the sentinel before `up` hears of it; how it ended is said
when it has; it dies with this process, and this one outlives `up` only until the last of them ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from apportion.cli.main import main as run_verb

MESSAGE_BYTES_MAX = 1 << 17
PR_SET_PDEATHSIG = 1
"""See prctl(2)."""
SIGNALS = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Order(msgspec.Struct, frozen=True):
    """A service to fork off: the words of its command line, its environment, and where it logs.

    With it comes a descriptor: the sentinel's pipe.
    """

    words: list[str]
    environment: dict[str, str]
    log: str


class Notice(msgspec.Struct, frozen=True):
    """A fork is there, or has ended with `code`, which is as `subprocess.Popen.returncode`."""

    pid: int
    code: int | None = None


def serve(up: socket.socket) -> None:
    """Fork services off until `up` has gone, and wait for those that are left."""

    def tell_ended(_number: int, _frame: object) -> None:
        with contextlib.suppress(ChildProcessError, OSError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                up.send(msgspec.json.encode(Notice(ended[0], code)))

    signal.signal(signal.SIGCHLD, tell_ended)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # `up` decides
    while True:
        order, pipes, *_ = socket.recv_fds(up, MESSAGE_BYTES_MAX, 1)
        if not order:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # said first: it is there
        parent, pid = os.getpid(), os.fork()
        if not pid:
            become(msgspec.json.decode(order, type=Order), pipes[0], up, parent)
            run_verb()
            sys.exit()
        up.send(msgspec.json.encode(Notice(pid)))
        os.close(pipes[0])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def become(order: Order, pipe: int, up: socket.socket, parent: int) -> None:
    """Leave nothing of what a fork has from this process but the modules."""
    os.setsid()
    os.write(pipe, f"+{os.getpid()}\n".encode())
    os.close(pipe)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    up.detach()
    with Path(os.devnull).open("rb") as nothing, Path(order.log).open("ab") as log:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(order.words[0], "utf-8")  # what `ps` and `top` show
    os.environ.update(order.environment)
    sys.argv[1:] = order.words


def main() -> None:
    """Import, and serve until `up` has gone."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # it is all shared, for as long as nobody writes to it
    serve(socket.socket(fileno=0))


if __name__ == "__main__":
    main()
