"""Tests of how the binder adapts its limit of concurrent requests to the API server's answers."""

import asyncio

from apportion.binder.kubernetes.target import CALM_S, FIRST, LEAST, MOST, PROMPT_S, Pace
from apportion.runtime.process.clock import SystemClock


class Hand(SystemClock):
    """A fake clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


async def test_prompt_answers_double_the_room_up_to_a_limit() -> None:
    """At the start, each prompt answer raises the limit of concurrent requests by one, up to a
    maximum. Slow answers do not raise the limit."""
    pace = Pace(Hand())
    for _ in range(int(FIRST)):
        pace.answered(0.01)
    assert pace.limit == 2 * FIRST
    pace.answered(PROMPT_S)
    assert pace.limit == 2 * FIRST
    for _ in range(1_000):
        pace.answered(0.01)
    assert pace.limit == MOST


async def test_after_the_first_refusal_room_grows_by_ones() -> None:
    """After the first refusal, the limit of concurrent requests grows slowly. At a limit of n,
    about n prompt answers raise it by one."""
    pace = Pace(Hand())
    pace.refused()
    before = pace.limit
    for _ in range(int(before)):
        pace.answered(0.01)
    assert before + 0.8 < pace.limit < before + 1.1


async def test_refusals_and_slow_answers_take_room_once_per_cause() -> None:
    """If several refusals and slow answers come in quick succession, the limit of concurrent
    requests falls only once. The limit never falls below a minimum."""
    clock = Hand()
    pace = Pace(clock)
    pace.refused()
    after = pace.limit
    assert after < FIRST
    pace.refused()
    pace.answered(60.0)
    assert pace.limit == after
    for _ in range(100):
        clock.now_s += CALM_S
        pace.refused()
    assert pace.limit == LEAST


async def test_who_waits_gets_room_in_order_and_may_give_up() -> None:
    """Requests over the limit wait and run in order. A waiting request that is cancelled is
    skipped."""
    pace = Pace(Hand())
    pace.limit = 2.0
    order: list[int] = []
    release = asyncio.Event()

    async def work(number: int) -> None:
        async with pace.turn():
            order.append(number)
            assert pace.in_flight <= 2
            await release.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(6)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    tasks[2].cancel()
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4, 5]
    assert pace.in_flight == 0


async def test_one_that_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    """If a waiting request is cancelled just as its turn comes, the next request gets the turn."""
    pace = Pace(Hand())
    pace.limit = 1.0
    first = pace.turn()
    await first.__aenter__()

    async def work() -> None:
        async with pace.turn():
            pass

    cancelled, last = asyncio.create_task(work()), asyncio.create_task(work())
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await asyncio.wait_for(last, 1)
    assert pace.in_flight == 0
