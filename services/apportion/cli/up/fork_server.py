"""Fork the services of `apportion up` from a process that has imported their code.

The services share most imports, which dominate the start-up time (see ADR 16). Invariants: a fork
registers with the sentinel before `up` learns of the fork. A fork dies with its fork server."""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from apportion.cli.main import main as run_verb

MESSAGE_BYTES_MAX = 1 << 17
PR_SET_PDEATHSIG = 1  # see prctl(2)
SIGNALS = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Order(msgspec.Struct, frozen=True):
    """A request to fork a service that logs to `log`. The sentinel's pipe is sent along with it."""

    words: list[str]
    environment: dict[str, str]
    log: str


class Notice(msgspec.Struct, frozen=True):
    """A message that a fork has started, or, if `code` is set, ended with this exit code."""

    pid: int
    code: int | None = None


class Forked:
    """A forked service, with a `returncode` as in `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        """Record the exit code and wake `wait`."""
        self.returncode = code
        self._ended.set()

    async def wait(self) -> int:
        """Wait until the service ends and return its exit code; negative for a signal."""
        await self._ended.wait()
        return self.returncode or 0


class ForkServer:
    """Runs a process that imports `modules` and forks services; `fork` restarts it if needed."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._listening = False
        self._forking: asyncio.Future[Forked] | None = None
        self._living: dict[int, Forked] = {}
        self._one_at_a_time = asyncio.Lock()

    def start(self) -> socket.socket:
        """Start the fork server without waiting for its imports. Raises OSError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        self._socket, self._listening = ours, False
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apportion.cli.up.fork_server", *self._modules],
                stdin=its.fileno(), start_new_session=True,
            )  # fmt: skip
        return ours

    async def fork(self, order: Order, pipe: Callable[[], int]) -> Forked:
        """Fork a service that first registers through the sentinel's `pipe`. Raises OSError."""
        async with self._one_at_a_time:
            ours = self._socket or self.start()
            loop = asyncio.get_running_loop()
            if not self._listening:
                loop.add_reader(ours, self._receive, ours)
                self._listening = True
            self._forking = loop.create_future()
            socket.send_fds(ours, [msgspec.json.encode(order)], [pipe()])
            return await self._forking

    def stop(self) -> None:
        """Kill the fork server and any unfinished fork. All services must have ended."""
        self._forget()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _receive(self, ours: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = ours.recv(MESSAGE_BYTES_MAX)
        if not data:  # the fork server died, and the kernel kills its forks
            self._forget()
            if self._process is not None:
                self._process.wait()
            if self._forking is not None and not self._forking.done():
                self._forking.set_exception(ChildProcessError("the fork server has exited"))
            for forked in self._living.values():
                forked.end(-signal.SIGKILL)
            self._living.clear()
            return
        notice = msgspec.json.decode(data, type=Notice)
        if notice.code is not None:
            self._living.pop(notice.pid).end(notice.code)
            return
        self._living[notice.pid] = Forked(notice.pid)
        if self._forking is not None and not self._forking.done():
            self._forking.set_result(self._living[notice.pid])

    def _forget(self) -> None:
        if self._socket is not None:
            if self._listening:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None


def serve(up: socket.socket) -> None:
    """Fork services until `up` has exited, then wait for the remaining services."""

    def tell_ended(_number: int, _frame: object) -> None:
        with contextlib.suppress(ChildProcessError, OSError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                up.send(msgspec.json.encode(Notice(ended[0], os.waitstatus_to_exitcode(ended[1]))))

    signal.signal(signal.SIGCHLD, tell_ended)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # `up` decides
    while True:
        order, pipes, *_ = socket.recv_fds(up, MESSAGE_BYTES_MAX, 1)
        if not order:
            break
        signal.pthread_sigmask(
            signal.SIG_BLOCK, SIGNALS
        )  # so that its start is sent before its end
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
    """Turn a new fork into the service: set up its session, signals, files and arguments."""
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
    """Import the modules, and serve until `up` has exited."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # keeps these pages shared
    serve(socket.socket(fileno=0))


if __name__ == "__main__":
    main()
