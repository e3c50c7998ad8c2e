"""What `apportion up` asks of its fork server: a service, and to know how it ended.

Invariant: a service counts as living until the fork server says how it ended, or has ended itself,
with which all of its forks end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from apportion.cli.up.fork_server import MESSAGE_BYTES_MAX, Notice, Order


class Forked:
    """A service that was forked off; `returncode` as in `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        """Note how it ended, for whoever waits for that."""
        self.returncode = code
        self._ended.set()

    async def wait(self) -> int:
        """Its exit code once it has ended; negative, the signal that killed it."""
        await self._ended.wait()
        return self.returncode or 0


class ForkServer:
    """A process that has imported `modules`; where it has ended, the next fork starts another."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._listening = False
        self._forking: asyncio.Future[Forked] | None = None
        self._living: dict[int, Forked] = {}
        self._one_at_a_time = asyncio.Lock()

    def start(self) -> socket.socket:
        """Let it begin to import, and return at once. Raises OSError."""
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
        """A service as it was ordered, which has named itself in the sentinel's `pipe` of then.

        Raises:
            OSError: there is no process or memory left, or the fork server ended meanwhile.
        """
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
        """End it, and with it whoever is being forked; all others have ended before."""
        self._forget()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _receive(self, ours: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = ours.recv(MESSAGE_BYTES_MAX)
        if not data:
            self._lose()
            return
        notice = msgspec.json.decode(data, type=Notice)
        if notice.code is not None:
            self._living.pop(notice.pid).end(notice.code)
            return
        self._living[notice.pid] = Forked(notice.pid)
        if self._forking is not None and not self._forking.done():
            self._forking.set_result(self._living[notice.pid])

    def _lose(self) -> None:
        """The fork server has ended, and the kernel kills all of its forks."""
        self._forget()
        if self._process is not None:
            self._process.wait()
        if self._forking is not None and not self._forking.done():
            self._forking.set_exception(ChildProcessError("the fork server has ended"))
        for forked in self._living.values():
            forked.end(-signal.SIGKILL)
        self._living.clear()

    def _forget(self) -> None:
        if self._socket is not None:
            if self._listening:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
