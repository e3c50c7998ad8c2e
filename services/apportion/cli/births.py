"""What `apportion up` asks of the nursery: services that are born, and that are told dead.

Invariant: who was born here counts as living until the nursery tells how it ended, or has ended
itself, with which all that were born there end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from apportion.cli.nursery import MESSAGE_BYTES_MAX, Order, Told


class Born:
    """A service that was born; `returncode` as in `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        """Note how it ended."""
        self.returncode = code
        self._ended.set()

    async def wait(self) -> int:
        """Its exit code once it has ended; negative, the signal that killed it."""
        await self._ended.wait()
        return self.returncode or 0


class Nursery:
    """A process that has imported `modules`; where it has ended, the next birth starts another."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._heard = False
        self._birth: asyncio.Future[Born] | None = None
        self._living: dict[int, Born] = {}
        self._one_birth = asyncio.Lock()

    def start(self) -> socket.socket:
        """Let it begin to import, and return at once. Raises OSError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        self._socket, self._heard = ours, False
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apportion.cli.nursery", *self._modules],
                stdin=its.fileno(), start_new_session=True,
            )  # fmt: skip
        return ours

    async def bear(self, order: Order, pipe: int) -> Born:
        """A service as it was ordered, which has named itself in the sentinel's `pipe`.

        Raises:
            OSError: there is no process or memory left, or the nursery ended meanwhile.
        """
        async with self._one_birth:
            ours = self._socket or self.start()
            loop = asyncio.get_running_loop()
            if not self._heard:
                loop.add_reader(ours, self._hear, ours)
                self._heard = True
            self._birth = loop.create_future()
            socket.send_fds(ours, [msgspec.json.encode(order)], [pipe])
            return await self._birth

    def stop(self) -> None:
        """End it, and with it whoever is being born; all others have ended before."""
        self._forget()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _hear(self, ours: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = ours.recv(MESSAGE_BYTES_MAX)
        if not data:
            self._bury()
            return
        told = msgspec.json.decode(data, type=Told)
        if told.code is not None:
            self._living.pop(told.pid).end(told.code)
            return
        self._living[told.pid] = Born(told.pid)
        if self._birth is not None and not self._birth.done():
            self._birth.set_result(self._living[told.pid])

    def _bury(self) -> None:
        """The nursery has ended, and the kernel kills all that were born there."""
        self._forget()
        if self._process is not None:
            self._process.wait()
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(ChildProcessError("the nursery of the services has ended"))
        for born in self._living.values():
            born.end(-signal.SIGKILL)
        self._living.clear()

    def _forget(self) -> None:
        if self._socket is not None:
            if self._heard:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
