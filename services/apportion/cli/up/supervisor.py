"""The processes of `apportion up`: started, watched, started again when they die, ended together.

Each is a process group of its own, so Ctrl-C reaches us alone and a group ends whole. Each names
itself to the sentinel as it begins, before it becomes the service, so there is no moment at which
killing us would leave a process behind. Invariant: after `stop` nothing that was started here is
running."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from apportion.cli.up import sentinel
from apportion.cli.up.fork_server import Forked, ForkServer, Order
from apportion.runtime.jetstream.server.embedded import EmbeddedServer, ServerFailed
from apportion.runtime.process.clock import BackOff
from apportion.runtime.service.soundness import FULL, TROUBLES

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
BACK_OFF = BackOff(0.1, 10.0)
SETTLED_S = 30.0
"""A process that lived this long has started well: its next death is met without delay."""
EXIT_CONFIG = 78
LOG_TAIL_LINES = 8
HTTP_OK = 200
WAITS_FOR_ROOM = frozenset((FULL, *TROUBLES.values()))
"""What /readyz answers while the ledger has no room."""

Say = Callable[[str], None]


class UpFailed(Exception):
    """Something did not start; the message says what, why, and where to look."""


class HeldPort:
    """A port of this machine that is kept for a server from before that begins.

    A port that was free a moment ago may be anybody's by the time a service begins: even the source
    of a connection. While it is held the kernel gives it to nobody who asks for any port. At most
    one at a time, bound with SO_REUSEADDR and not listened on: a server that sets that as well, as
    asyncio's do, can listen there meanwhile (see socket(7)). `port` is 0 until one was taken."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = 0

    def take(self) -> str:
        """Hold another port than before; returns its address, as a service is told of it.

        Raises OSError where there is no port or descriptor left."""
        another = socket.socket()
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(("127.0.0.1", 0))
        self.release()  # after: not the same again
        self._socket = another
        host, self.port = another.getsockname()
        return f"{host}:{self.port}"

    def release(self) -> None:
        """From now on anybody may be given it."""
        if self._socket is not None:
            self._socket.close()


@dataclass(slots=True, eq=False)
class Child:
    """One service; `arguments` are those of the command line behind its name."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: Forked | None = None
    health: HeldPort = field(default_factory=HeldPort)
    ready: bool = False

    def log_tail(self) -> str:
        """The last lines that it logged."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
            return f"the end of {self.log} says:\n" + "\n".join(lines)
        return f"{self.log} says nothing"


class Supervisor:
    """The ledger's server, the services, and the sentinel; `changed` is told of every new pid."""

    def __init__(
        self,
        data: Path,
        nats_port: int,
        fork_server: ForkServer,
        *,
        say: Say,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._fork_server = fork_server
        self._server = EmbeddedServer(data, port=nats_port or -1, keys=True)
        self._say = say
        self._changed = changed
        self._pipe: IO[bytes] | None = None
        self._sentinel: asyncio.subprocess.Process | None = None
        self._children: list[Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._settled = False

    @property
    def started(self) -> bool:
        """Whether the data folder is ours: the server has its lock."""
        return self._sentinel is not None

    @property
    def server(self) -> EmbeddedServer:
        """The ledger's server that runs now."""
        return self._server

    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        pids = {child.name: child.process.pid for child in self._children if child.process}
        return {"nats-server": self._server.pid, **pids}

    def take_folder(self) -> None:
        """Take the data folder. Raises ServerFailed where another `up` has it."""
        self._server.take()

    async def start_server(self, *, remove: bool) -> None:
        """Start the sentinel and the ledger's server; with `remove` the data go at the end.

        Raises ServerFailed: the port is taken, or another `up` has the data folder."""
        await self._server.start()  # first: it takes the lock of the data folder
        await self._start_sentinel(remove=remove)

        async def keep_sentinel() -> None:
            while self._sentinel is not None:
                await self._sentinel.wait()
                await self._start_sentinel(remove=remove)

        self._keep(self._keep_server())
        self._keep(keep_sentinel())

    def start(self, child: Child) -> None:
        """Start a service and keep it running."""
        child.log.parent.mkdir(parents=True, exist_ok=True)
        child.log.write_bytes(b"")
        self._children.append(child)
        self._keep(self._keep_child(child))

    async def ready(self) -> None:
        """Return once every service is ready.

        Raises UpFailed: one is not in time, or has a setting that cannot work."""
        waiting = [asyncio.create_task(self._wait_ready(child)) for child in self._children]
        failed = asyncio.create_task(self.failed())
        try:
            for done in asyncio.as_completed([*waiting, failed]):
                failure = await done
                if failure is not None:
                    raise failure
                if all(task.done() for task in waiting):
                    self._settled = True
                    return
        finally:
            for task in (*waiting, failed):
                task.cancel()
            await asyncio.gather(*waiting, failed, return_exceptions=True)

    async def failed(self) -> Exception:
        """Return, once something cannot be kept running, why."""
        await self._failed.wait()
        return self._failure or UpFailed("a process could not be kept running")

    async def stop(self) -> None:
        """End everything; what does not end in time is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, self._children))
        self._fork_server.stop()
        await self._server.stop()
        if self._sentinel is not None and self._pipe is not None:
            self._tell_sentinel(sentinel.DONE)
            self._pipe.close()
            await self._sentinel.wait()

    def kill(self) -> None:
        """End everything at once: a person pressed Ctrl-C twice."""
        for child in self._children:
            _signal(child.process, signal.SIGKILL)

    # -------------------------------------------------------------- one service

    async def _keep_child(self, child: Child) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                process = await self._spawn(child)
            except OSError as error:  # no process, memory or disk left: it may pass
                if not self._settled:
                    raise
                self._say(f"the {child.name} cannot be started: {error}; trying again")
                await asyncio.sleep(BACK_OFF.longest_s)
                continue
            code = await process.wait()
            self._forget(process.pid)
            child.process, child.ready = None, False
            if code == EXIT_CONFIG and not self._settled:
                raise UpFailed(f"the {child.name} did not start; {child.log_tail()}")
            failures = 0 if time.monotonic() - began > SETTLED_S else failures + 1
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._say(f"the {child.name} {how}; starting it again, see {child.log}")
            await asyncio.sleep(BACK_OFF.after(failures))

    async def _spawn(self, child: Child) -> Forked:
        health = {"APPORTION_HEALTH": child.health.take()}
        order = Order(
            [child.name, *child.arguments], {**child.environment, **health}, str(child.log)
        )

        def pipe() -> int:
            if self._pipe is None:
                raise UpFailed(f"the {child.name} has no sentinel: start the server first")
            return self._pipe.fileno()

        process = await self._fork_server.fork(order, pipe)
        self._tell_sentinel(f"+{process.pid}\n")  # there may be another one since
        child.process = process
        self._changed()
        return process

    async def _wait_ready(self, child: Child) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                # It is another process: there is nothing to be woken by.
                while not await asyncio.to_thread(is_ready, child.health.port):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise UpFailed(
                f"the {child.name} is not ready after {READY_TIMEOUT_S:g} s; {child.log_tail()}"
            ) from None
        child.ready = True

    async def _end(self, child: Child) -> None:
        process = child.process
        child.health.release()
        if process is None:
            return
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()
        self._forget(process.pid)

    # -------------------------------------------------------------- server and sentinel

    async def _keep_server(self) -> None:
        while True:
            died = await self._server.died()
            self._say(f"{died.problem}; starting it again")
            port, monitor_port = self._server.port, self._server.monitor_port
            await self._server.stop()
            # The gateway was told where it tells about itself; a ledger without that is better
            # than none.
            monitor_port = -1 if why_taken("127.0.0.1", monitor_port) else monitor_port
            server = EmbeddedServer(self._data, port=port, monitor_port=monitor_port, keys=True)
            for failures in itertools.count(1):
                try:
                    await server.start()
                    break
                except ServerFailed as error:
                    self._say(str(error))
                    await asyncio.sleep(BACK_OFF.after(failures))
            self._server = server
            self._changed()

    async def _start_sentinel(self, *, remove: bool) -> None:
        """Its pipe names all that run before it begins: it is never there and knows nothing."""
        read, write = os.pipe()
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = os.fdopen(write, "wb", buffering=0)
        for child in self._children:
            if child.process is not None:
                self._tell_sentinel(f"+{child.process.pid}\n")
        try:
            self._sentinel = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", sentinel.__file__, self._data,
                *(["remove"] if remove else []),
                stdin=read,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(read)

    def _forget(self, pid: int) -> None:
        self._tell_sentinel(f"-{pid}\n")

    def _tell_sentinel(self, line: str) -> None:
        with contextlib.suppress(OSError):  # dead for a moment: the next one is told anew
            if self._pipe is not None:
                self._pipe.write(line.encode())

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        def note_failure(task: asyncio.Task[None]) -> None:
            failure = None if task.cancelled() else task.exception()
            if isinstance(failure, Exception):
                self._failure = self._failure or failure
                self._failed.set()

        task = asyncio.create_task(work)
        task.add_done_callback(note_failure)
        self._tasks.append(task)


def is_ready(port: int) -> bool:
    """Whether a service answers on this port of this machine that it is ready.

    A service that waits for nothing but room in the ledger is: it goes on by itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status == HTTP_OK:
            return True
        reasons = json.loads(answer.read())["reasons"]
        return bool(reasons) and WAITS_FOR_ROOM.issuperset(reasons)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False
    finally:
        connection.close()


def why_taken(host: str, port: int) -> str:
    """Why no server can listen there now; empty if one can. A port 0 is a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _signal(process: Forked | None, number: int) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
