"""An event loop in virtual time: when all tasks sleep, the clock jumps to the next timer.

Invariant: the same calls in the same order give the same run on every machine and under any hash
seed. A loop with nothing left to do raises an error instead of hanging."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


ROUNDS_PER_INSTANT_MAX = 100_000
ENDINGS = 8  # a task may shield another, or start one while it ends
END_S = 60.0
THREAD_S = 0.05
"""The virtual time of every call that runs in a thread."""


class NothingLeft(Exception):
    """Raised if every task waits for something that will never happen."""


class Spinning(Exception):
    """Raised if tasks keep running while virtual time does not pass."""


class _NumberedTask(asyncio.Task[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class _NumberedFuture(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class _Selector:
    """A selector without files, which advances virtual time instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._rounds = 0

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise NothingLeft("no task can go on and no timer is set")
        self._rounds += 1
        if timeout_s > 0:
            self._rounds = 0
            self._loop.advance()
        elif self._rounds > ROUNDS_PER_INSTANT_MAX:
            raise Spinning(f"{self._rounds} rounds at {self._loop.time():.6f} s")
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time, in a single thread, without sockets or signals."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector(self)
        self._now_s = 0.0
        self._numbers = itertools.count(1)
        self._clock_resolution = 1e-9
        self.set_task_factory(self._make_task)  # type: ignore[arg-type] # generic in the stubs

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now_s

    def advance(self) -> None:
        """Advance the virtual time to the next timer."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._now_s = max(self._now_s, timers[0].when())

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future whose hash is a serial number, so that it is the same in every run."""
        future = _NumberedFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def run_in_executor(
        self, executor: object, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Call `func` after as much virtual time as a thread would take."""
        del executor
        done = self.create_future()

        def finish() -> None:
            if done.done():
                return
            try:
                done.set_result(func(*args))
            except Exception as failure:  # noqa: BLE001 - handed to whoever waits
                done.set_exception(failure)

        self.call_later(THREAD_S, finish)
        return done

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T],
        *,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = _NumberedTask(work, loop=self, context=context)
        task.number = next(self._numbers)
        return task

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing, because this loop has no input or output."""

    def _write_to_self(self) -> None:
        """Do nothing, because no other thread can wake this loop."""


async def rest(seconds: float) -> None:
    """Sleep for this many virtual seconds."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _finish, done)
    try:
        await done
    finally:
        timer.cancel()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def after_steps(steps: int, call: Callable[[], None]) -> None:
    """Call the function after `steps` rounds of the loop, while no virtual time passes."""
    loop = asyncio.get_running_loop()
    if steps <= 0:
        call()
    else:
        loop.call_soon(after_steps, steps - 1, call)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new loop, and return its result. Cancel the tasks that are still running."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _end_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end_all(loop: VirtualLoop) -> None:
    for _ in range(ENDINGS):
        left = sorted(asyncio.all_tasks(loop), key=hash)
        if not left:
            return
        alive = len(left)

        def ended(_task: asyncio.Task[Any]) -> None:
            nonlocal alive
            alive -= 1
            if not alive:
                loop.stop()

        for task in left:
            task.add_done_callback(ended)
            task.cancel()
        loop.call_later(END_S, loop.stop)
        try:
            loop.run_forever()
        except Spinning:
            return
