"""Calls into the driver that may never return, each kept from stopping more than its own card.

A driver that waits for a card which fell off the bus (XID 79, 119) blocks the calling thread, and
no thread can be ended from outside. So calls are made on daemon threads, one call at a time in each
`Lane`. A call that takes longer than its lane allows is abandoned: its thread is lost until the
call returns. Invariants: a hung lane begins no other call, and refuses each at once; no call begins
after its caller was refused; the process can end while calls hang.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

CALL_S: Final = 10.0
"""Cutting a card, and waking one without persistence mode, takes seconds."""

T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
_Jobs = SimpleQueue[_Job | None]

_log = logging.getLogger(__name__)


class Hung(Exception):
    """A call into the driver has not returned; the message says for how long at least."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"NVML: a call has not returned for {limit_s:g} s")


class Threads:
    """The threads of all lanes: as many as there are calls at one time."""

    def __init__(self) -> None:
        self._idle: list[_Jobs] = []
        self._closed = False

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run the function on a thread of its own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._idle:
            jobs = self._idle.pop()
        else:
            jobs = SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name="nvml", daemon=True).start()
        jobs.put((function, loop, future))
        return future

    def close(self) -> None:
        """End the threads; one whose call hangs ends when the call returns."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, jobs: _Jobs) -> None:
        while (job := jobs.get()) is not None:
            function, loop, future = job
            result, error = None, None
            try:
                result = function()
            except Exception as raised:  # noqa: BLE001 - it is the caller's
                error = raised
            try:
                loop.call_soon_threadsafe(self._deliver, jobs, future, result, error)
            except RuntimeError:  # the loop is closed: the process ends
                return

    def _deliver(
        self, jobs: _Jobs, future: asyncio.Future[Any], result: Any, error: Exception | None
    ) -> None:
        if self._closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
            future.exception()  # its caller may have given up


class Lane:
    """Calls that are made one after another, about one card."""

    def __init__(
        self, name: str, threads: Threads, limit_s: float, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when the lane hangs, and when it goes on."""
        self.name = name
        self.hung = False
        self._threads = threads
        self._limit_s = limit_s
        self._on_change = on_change
        self._alone = asyncio.Lock()
        self._current: asyncio.Future[Any] | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns.

        Raises:
            Hung: it has not returned in time, or an earlier call has not.
        """
        async with self._alone:
            if self._current is not None:  # the caller of an earlier one may have been cancelled
                await self._returned(self._current)
            self._current = future = self._threads.begin(function)
            await self._returned(future)
            return future.result()

    async def _returned(self, future: asyncio.Future[Any]) -> None:
        """Raises Hung."""
        if not future.done() and not self.hung:
            await asyncio.wait({future}, timeout=self._limit_s)
            if not future.done():
                self.hung = True
                future.add_done_callback(self._goes_on)
                _log.error("%s: %s; nothing else is asked of it", self.name, Hung(self._limit_s))
                self._on_change()
        if not future.done():
            raise Hung(self._limit_s)

    def _goes_on(self, future: asyncio.Future[Any]) -> None:  # noqa: ARG002 - abandoned
        self.hung = False
        _log.info("%s: the call into the driver has returned", self.name)
        self._on_change()


def within(limit_s: float, function: Callable[[], None]) -> None:
    """Run the function, where no loop can wait for it.

    Raises:
        Hung: it has not returned in time.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="nvml", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise Hung(limit_s)
    if errors:
        raise errors[0]
