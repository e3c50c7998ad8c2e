"""The simulated network to the ledger: one link for each connection, with the run's faults.

Invariants: a message in transit arrives even if its sender is killed. Nothing passes a cut link
until it is mended, and nothing ever passes a dead link."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from apportion.runtime.jetstream.wire import LostReply
from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable
from tests.simulation.loop import rest
from tests.simulation.weather import Weather

T = TypeVar("T")
ACK_TIMEOUT_S = 10.0
"""The same timeout as in the real connection."""
CONNECT_WAIT_S = 10.0
TRIP_S = (0.0002, 0.004)
SLOW_TRIP_S = (0.05, 3.0)
LATE_S = (0.5, 25.0)
AGAIN_S = (0.001, 8.0)
DROP_S = (0.2, 6.0)
RECORDS_AT_ONCE = 24


class FaultyLink:
    """A connection to the ledger's server, with faults; implements `memory_ledger.Link`."""

    def __init__(self, weather: Weather, chance: random.Random) -> None:
        self._weather = weather
        self._chance = chance
        self._whole = asyncio.Event()
        self._whole.set()
        self._dead = False
        self.muted = False
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._asked = 0

    def cut(self) -> None:
        """Cut the link, and fail every pending request."""
        self._whole.clear()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(LostReply("the connection was lost"))

    def mend(self) -> None:
        if not self._dead:
            self._whole.set()

    def kill(self) -> None:
        """Break the link for good, because its client was killed."""
        self._dead = True
        self.cut()

    async def ask(self, what: str, act: Callable[[], T]) -> T:
        await self._connected()
        answer = self._expect_answer()
        number = self._asked
        trip_s = self._trip_s()
        loop = asyncio.get_running_loop()
        strikes = self._weather.strikes
        if what == "append" and strikes("duplicate publish", self._chance):
            loop.call_later(trip_s + self._chance.uniform(*AGAIN_S), _repeat, act)
        if strikes("lost request, not stored", self._chance):
            loop.call_later(trip_s, self._lose, number)
        elif what == "append" and strikes("stored late", self._chance):
            loop.call_later(self._chance.uniform(*LATE_S), _repeat, act)
            loop.call_later(trip_s, self._lose, number)
        else:
            loop.call_later(trip_s, self._arrive, what, act, number)
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                found: T = await answer  # type: ignore[assignment] # what `act` returned
                return found
        except TimeoutError:
            raise LostReply(f"no answer within {ACK_TIMEOUT_S:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def send(self, what: str, act: Callable[[], object]) -> None:
        if self.muted and what == "publish":
            return
        if not self._whole.is_set():
            raise LedgerUnavailable("not connected")
        await asyncio.sleep(0)
        if not self._weather.strikes("lost request, not stored", self._chance):
            asyncio.get_running_loop().call_later(self._trip_s(), act)

    async def carry(self) -> int:
        await rest(self._trip_s())
        if self._weather.strikes("dropped connection", self._chance):
            await rest(self._chance.uniform(*DROP_S))
        await self._whole.wait()
        return self._chance.randint(1, RECORDS_AT_ONCE)

    async def _connected(self) -> None:
        if self._dead:
            raise LedgerUnavailable("the process is dead")
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                await self._whole.wait()
        except TimeoutError:
            raise LedgerUnavailable(f"not connected for {CONNECT_WAIT_S:g} s") from None

    def _trip_s(self) -> float:
        if self._weather.strikes("delayed delivery", self._chance):
            return self._chance.uniform(*SLOW_TRIP_S)
        return self._chance.uniform(*TRIP_S)

    def _expect_answer(self) -> asyncio.Future[object]:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked += 1
        self._waiting[self._asked] = answer
        return answer

    def _arrive(self, what: str, act: Callable[[], object], number: int) -> None:
        """Deliver the message to the server, even if its sender was killed."""
        result: object = None
        failure: LedgerError | None = None
        try:
            result = act()
        except LedgerError as error:
            failure = error
        lost = "lost fetch" if what == "fetch" else "lost answer, stored"
        if self._weather.strikes(lost, self._chance):
            self._lose(number)
            return
        asyncio.get_running_loop().call_later(self._trip_s(), self._answer, number, result, failure)

    def _answer(self, number: int, result: object, failure: LedgerError | None) -> None:
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result)

    def _lose(self, number: int) -> None:
        """Let the sender's request fail, either at once or after its timeout."""
        answer = self._waiting.get(number)
        if answer is not None and not answer.done() and self._chance.random() < 0.7:
            answer.set_exception(LostReply("the connection was lost before the answer"))


def _repeat(act: Callable[[], object]) -> None:
    """Deliver a message again or late. Ignore the answer."""
    try:
        act()
    except LedgerError:
        return
