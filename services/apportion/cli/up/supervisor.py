"""Start, watch, restart and end the processes of `apportion up`.

Each process registers with the sentinel first. Each has its own process group, so that Ctrl-C
reaches only `up`. Invariant: after `stop`, nothing that was started here is running."""

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
SETTLED_S = 30.0  # a process that lived this long restarts without delay
EXIT_CONFIG = 78
LOG_TAIL_LINES = 8
HTTP_OK = 200
# answers of /readyz while the ledger is full
WAITS_FOR_ROOM = frozenset((FULL, *TROUBLES.values()))

Say = Callable[[str], None]


class UpFailed(Exception):
    """The error for a process that did not start, with the cause and where to look."""


class HeldPort:
    """Reserves a port for a server that starts later; `port` is 0 before `take`.

    The socket here is bound with SO_REUSEADDR and does not listen. Only a server that also sets
    SO_REUSEADDR, as asyncio's do, can listen on the port (see socket(7))."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = 0

    def take(self) -> str:
        """Reserve a new port and return its address. Raises OSError."""
        another = socket.socket()
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(("127.0.0.1", 0))
        self.release()  # after binding, so that it is a different port
        self._socket = another
        host, self.port = another.getsockname()
        return f"{host}:{self.port}"

    def release(self) -> None:
        """Stop reserving the port, so that any process can use it."""
        if self._socket is not None:
            self._socket.close()


@dataclass(slots=True, eq=False)
class Child:
    """One service of `up`; `arguments` follow its name on the command line."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: Forked | None = None
    health: HeldPort = field(default_factory=HeldPort)

    def log_tail(self) -> str:
        """Return the end of the service's log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
            return f"last lines of {self.log}:\n" + "\n".join(lines)
        return f"{self.log} is empty"


class Supervisor:
    """Runs the ledger's server, services and sentinel. Calls `changed` when a pid changes."""

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
        self.server = EmbeddedServer(data, port=nats_port or -1, keys=True)
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
        """Return True once the server that we started runs and has locked the data folder."""
        return self._sentinel is not None

    def pids(self) -> dict[str, int]:
        """Return the running processes by name."""
        pids = {child.name: child.process.pid for child in self._children if child.process}
        return {"nats-server": self.server.pid, **pids}

    async def start_server(self, *, remove: bool) -> None:
        """Start the ledger's server and the sentinel. Raises ServerFailed.

        With `remove`, the sentinel deletes the data folder at the end."""
        await self.server.start()  # first, because it locks the data folder
        await self._start_sentinel(remove=remove)

        async def keep_sentinel() -> None:
            while self._sentinel is not None:
                await self._sentinel.wait()
                await self._start_sentinel(remove=remove)

        self._keep(self._keep_server())
        self._keep(keep_sentinel())

    def start(self, child: Child) -> None:
        """Start a service, and restart it whenever it ends."""
        child.log.parent.mkdir(parents=True, exist_ok=True)
        child.log.write_bytes(b"")
        self._children.append(child)
        self._keep(self._keep_child(child))

    async def ready(self) -> None:
        """Wait until every service is ready. Raises UpFailed."""
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
        """Wait until a process cannot be kept running, and return the error."""
        await self._failed.wait()
        return self._failure or UpFailed("a process keeps failing")

    async def stop(self) -> None:
        """End all processes, and kill those that still run after a timeout."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, self._children))
        self._fork_server.stop()
        await self.server.stop()
        if self._sentinel is not None and self._pipe is not None:
            self._tell_sentinel(sentinel.DONE)
            self._pipe.close()
            await self._sentinel.wait()

    def kill(self) -> None:
        """Kill the services at once, for example after a second Ctrl-C."""
        for child in self._children:
            _signal(child.process, signal.SIGKILL)

    async def _keep_child(self, child: Child) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                process = await self._spawn(child)
            except OSError as error:  # out of processes, memory or disk: may pass
                if not self._settled:
                    raise
                self._say(f"cannot start the {child.name}, retrying: {error}")
                await asyncio.sleep(BACK_OFF.longest_s)
                continue
            code = await process.wait()
            self._tell_sentinel(f"-{process.pid}\n")
            child.process = None
            if code == EXIT_CONFIG and not self._settled:
                raise UpFailed(f"the {child.name} did not start; {child.log_tail()}")
            failures = 0 if time.monotonic() - began > SETTLED_S else failures + 1
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self._say(f"the {child.name} {how}; restarting it, see {child.log}")
            await asyncio.sleep(BACK_OFF.after(failures))

    async def _spawn(self, child: Child) -> Forked:
        health = {"APPORTION_HEALTH": child.health.take()}
        order = Order(
            [child.name, *child.arguments], {**child.environment, **health}, str(child.log)
        )

        def pipe() -> int:
            if self._pipe is None:
                raise UpFailed(
                    f"cannot start the {child.name}: the sentinel, which stops the services if "
                    "`up` is killed, is not running; run `apportion up` again"
                )
            return self._pipe.fileno()

        process = await self._fork_server.fork(order, pipe)
        self._tell_sentinel(f"+{process.pid}\n")  # the sentinel may have been restarted
        child.process = process
        self._changed()
        return process

    async def _wait_ready(self, child: Child) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                # Polled, because it is another process.
                while not await asyncio.to_thread(is_ready, child.health.port):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise UpFailed(
                f"the {child.name} is not ready after {READY_TIMEOUT_S:g} s; {child.log_tail()}"
            ) from None

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
        self._tell_sentinel(f"-{process.pid}\n")

    async def _keep_server(self) -> None:
        while True:
            died = await self.server.died()
            self._say(f"{died.problem}; restarting it")
            port, monitor_port = self.server.port, self.server.monitor_port
            await self.server.stop()
            # The gateway knows the old monitoring port; without it the ledger still works.
            monitor_port = -1 if why_taken("127.0.0.1", monitor_port) else monitor_port
            server = EmbeddedServer(self._data, port=port, monitor_port=monitor_port, keys=True)
            for failures in itertools.count(1):
                try:
                    await server.start()
                    break
                except ServerFailed as error:
                    self._say(str(error))
                    await asyncio.sleep(BACK_OFF.after(failures))
            self.server = server
            self._changed()

    async def _start_sentinel(self, *, remove: bool) -> None:
        read, write = os.pipe()
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = os.fdopen(write, "wb", buffering=0)
        # Before it starts, so that it always knows the running processes.
        for child in self._children:
            if child.process is not None:
                self._tell_sentinel(f"+{child.process.pid}\n")
        try:
            self._sentinel = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", sentinel.__file__, self._data,
                *(["remove"] if remove else []),
                stdin=read, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(read)

    def _tell_sentinel(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it died; the next one is told again
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
    """Return True if the service on this port is ready, or only blocked by a full ledger."""
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
    """Return why no server can listen on this address, or "" if the port is free or 0."""
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
