"""Runs a service: starts it, runs its named loops, restarts it after an error, stops it.

Crash-only: after an unexpected error, the body drops all that it had derived, starts again and
refolds the ledger. Invariants: the process never continues with a failed loop. Restarts are
limited. A signal always ends the process within the deadline.

Exit codes: 0 stopped on request; 70 more than MAX_RESTARTS failures a minute; 75 not stopped within
the deadline; 78 a setting, permission or ledger setup is wrong, the ledger lost events, or a
compiled module is older than its source."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from apportion.core.ledger.rules import Superseded
from apportion.runtime.ledger.port import (
    Ledger,
    LedgerDrifted,
    LedgerHole,
    LedgerTrimmed,
    LedgerUnavailable,
    NotPermitted,
    ServerTooOld,
)
from apportion.runtime.process import memory
from apportion.runtime.process.clock import BackOff, Clock, SystemClock
from apportion.runtime.process.compilation import outdated
from apportion.runtime.process.config import ConfigError, ServiceConfig
from apportion.runtime.process.cpu_policy import interrupt_nobody, seldom_look_for_cycles
from apportion.runtime.process.logs import Logger, configure_logs, get_logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import Guard, HttpServer
from apportion.runtime.service.own_machine import (
    both,
    is_own_machine,
    own_machine_only,
    scrapers_only,
)
from apportion.runtime.service.soundness import Examined, Soundness

EXIT_OK = 0
EXIT_ERROR = 70
EXIT_STUCK = 75
EXIT_CONFIG = 78
MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
BACK_OFF = BackOff(0.1, 5.0)
LEAVE_S = 0.5

# a retry does not help
_HOPELESS = (ConfigError, ServerTooOld, LedgerDrifted, LedgerHole, NotPermitted)


Connect = Callable[[], Awaitable[Ledger]]  # how a service that brings its own ledger connects


class Service:
    """The settings, loops and health of a running service. `connect` opens its ledger."""

    def __init__(
        self, name: str, config: ServiceConfig, *, clock: Clock, connect: Connect | None = None
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        self.connect = connect
        self.metrics = Metrics()
        self.log: Logger = get_logger(name)
        self.soundness = Soundness(self.metrics, clock, self.log)
        self.stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._checks: list[Callable[[], list[str]]] = []
        self._farewell: Callable[[], Awaitable[None]] | None = None
        self.phase = "starting"

    def loop(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a named loop in parallel to the body. If a loop fails, the body and all loops end."""
        if self._tasks is None:
            raise RuntimeError(f"loop {name} started outside of the service body")

        async def named() -> None:
            try:
                await run()
            except Exception as failure:
                failure.add_note(f"in loop {name!r}")
                raise

        self._tasks.create_task(named(), name=name)

    def watch(self, ledger: Examined) -> None:
        """Check the ledger's settings at intervals until the service's main function ends."""
        self.loop("check the ledger", lambda: self.soundness.watch(ledger))

    def ready_when(self, not_ready: Callable[[], list[str]]) -> None:
        """Let `not_ready` add reasons to /readyz until the service's main function ends."""
        self._checks.append(not_ready)

    def before_stopping(self, run: Callable[[], Awaitable[None]]) -> None:
        """Call `run` before the service stops its loops."""
        self._farewell = run

    async def take_leave(self) -> None:
        """Call the `before_stopping` function, for at most half of the stop deadline."""
        if self._farewell is None:
            return
        try:
            async with asyncio.timeout(self.config.stop_timeout_s / 2):
                await self._farewell()
        except Exception as failure:  # noqa: BLE001 - the service stops anyway
            self.log.warning("cannot announce the stop, stopping anyway", error=str(failure))

    def reasons_against_ready(self) -> list[str]:
        """Return why the service is not ready; empty if it is."""
        if self.phase != "running":
            return [self.phase]
        if not self._checks:
            return ["connecting"]  # the body has not called `ready_when` yet
        reasons = [reason for check in self._checks for reason in check()]
        return reasons + self.soundness.not_ready()

    def frozen(self) -> str:
        """Return why the ledger takes no appends from this process (a key of `FREEZES`), or ""."""
        if self.soundness.drifted():
            return "ledger-drifted"
        trouble = self.soundness.trouble()
        if trouble == "full" or self.soundness.free() <= 0:
            return "ledger-full"
        return "ledger-silent" if trouble else ""

    async def run_body(self, main: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        """Run `main` and the loops that it starts until all have ended."""
        self._checks.clear()
        self.phase = "running"
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                # A task like its loops: all are cancelled together, so none works on with what
                # another has closed.
                tasks.create_task(main(self), name="body")
        finally:
            self._tasks = self._farewell = None
            self._checks.clear()


# what a service does in one run; see Service.run_body
Body = Callable[[Service], Coroutine[Any, Any, None]]


def run_service(
    name: str, main: Body, config: ServiceConfig, *, small: bool = False, guard: Guard | None = None
) -> int:
    """Run the service until it is stopped, and return the exit code.

    `guard` decides which clients may read metrics. By default, other machines need the token, and
    pages of other sites are refused. `small` uses asyncio's loop: slower, but 3 MB smaller."""
    configure_logs(service=name, level=config.log_level, form=config.log_format)
    seldom_look_for_cycles()
    interrupt_nobody()
    if late := outdated():
        get_logger(name).error(
            "a compiled module is older than its source", module=str(late[0]), fix="make compile"
        )
        return EXIT_CONFIG
    factory = None
    if not small:
        import uvloop  # noqa: PLC0415 - small services save its memory

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        code = runner.run(_serve(name, main, config, guard))
        if code == EXIT_STUCK:
            _leave(code)  # closing the loop would wait for the stuck tasks
        # Closing also waits for threads, and a name lookup takes 20 s to fail.
        leaving = threading.Timer(LEAVE_S, _leave, (code,))
        leaving.daemon = True
        leaving.start()
    leaving.cancel()
    return code


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    os._exit(code)


async def _serve(name: str, main: Body, config: ServiceConfig, guard: Guard | None) -> int:
    service = Service(name, config, clock=SystemClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stopping.set)
    if is_own_machine(config.health.host):
        guard = both(own_machine_only(), guard)
    elif guard is None:
        guard = scrapers_only(config.metrics_token)
    server = HttpServer(
        config.health, metrics=service.metrics, not_ready=service.reasons_against_ready, guard=guard
    )
    try:
        address = await server.start()
    except ConfigError as failure:
        service.log.error("cannot start", error=str(failure))  # noqa: TRY400 - the message says it
        return EXIT_CONFIG
    service.log.info("started", health=f"http://{address}/readyz")
    life = asyncio.create_task(_live(service, main), name="life")
    stopping = asyncio.create_task(service.stopping.wait(), name="signals")
    gathering = asyncio.create_task(memory.keep_in_huge_pages(service.clock), name="huge pages")
    try:
        await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            service.phase = "stopping"
            service.log.info("stopping")
            await service.take_leave()
            life.cancel()
            await asyncio.wait({life}, timeout=service.config.stop_timeout_s)
            if life.done():
                code = EXIT_OK
                with contextlib.suppress(asyncio.CancelledError):
                    code = life.result()
                service.log.info("stopped")
                return code
            stuck = sorted(task.get_name() for task in asyncio.all_tasks() if not task.done())
            service.log.error(
                "stop timed out", deadline_s=service.config.stop_timeout_s, tasks=stuck
            )
            return EXIT_STUCK
        return life.result()
    finally:
        stopping.cancel()
        gathering.cancel()
        await server.stop()


async def _live(service: Service, main: Body) -> int:
    failures: collections.deque[float] = collections.deque()
    waited = 0  # restarts in a row that waited for the ledger
    while True:
        began = service.clock.monotonic()
        try:
            await service.run_body(main)
            return EXIT_OK
        except BaseExceptionGroup as group:
            causes = _leaves(group)
        except Exception as failure:  # noqa: BLE001 - crash-only: any error restarts the body
            causes = [failure]
        for cause in causes:
            if isinstance(cause, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise cause
        if service.stopping.is_set():
            _log_failure(service, causes)
            return EXIT_ERROR
        now = service.clock.monotonic()
        while failures and failures[0] < now - RESTART_WINDOW_S:
            failures.popleft()
        if all(isinstance(cause, LedgerUnavailable) for cause in causes):
            # each restart opens a connection, and the server limits those of a token
            waited = waited + 1 if now - began < RESTART_WINDOW_S else 1
            service.log.warning("waiting for the ledger", error=str(causes[0]))
        else:
            waited = 0
            failures.append(now)
            _log_failure(service, causes)
            if any(_is_hopeless(cause) for cause in causes):
                return EXIT_CONFIG
            if len(failures) > MAX_RESTARTS:
                service.log.error(
                    "too many failures, giving up", failures=len(failures), within_s=60
                )
                return EXIT_ERROR
        service.metrics.restarts.inc()
        service.phase = f"restarting after an error: {causes[0]}"
        await service.clock.pause(BACK_OFF.after(1 + max(waited - 1, len(failures))))


def _log_failure(service: Service, causes: list[BaseException]) -> None:
    for cause in causes:
        if _is_hopeless(cause):
            service.log.error("cannot continue", error=str(cause))
        elif isinstance(cause, Superseded):
            service.log.warning(
                "restarting without the events that were set aside", reason=str(cause)
            )
        else:
            service.log.error("unexpected error", exc_info=cause)


def _is_hopeless(cause: BaseException) -> bool:
    # With a trimmed ledger the next start uses a snapshot.
    return isinstance(cause, _HOPELESS) and not isinstance(cause, LedgerTrimmed)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for cause in group.exceptions:
        leaves += _leaves(cause) if isinstance(cause, BaseExceptionGroup) else [cause]
    return leaves
