"""The virtual event loop: time passes only while all tasks wait, and every run is the same."""

import asyncio

import pytest

from tests.simulation.loop import NothingLeft, Spinning, after_steps, rest, run_virtually


def test_an_hour_takes_no_time_and_timers_go_off_in_order() -> None:
    """On the virtual loop, sleeping takes no real time, and timers fire in order and on time."""
    seen: list[tuple[str, float]] = []

    async def nap(name: str, seconds: float) -> None:
        await rest(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(nap("hour", 3600), nap("minute", 60), nap("instant", 0))

    run_virtually(main())
    assert seen == [("instant", 0.0), ("minute", 60.0), ("hour", 3600.0)]


def test_a_deadlock_raises() -> None:
    """If all tasks on the virtual loop wait for one another, the loop raises an error at once."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeft):
        run_virtually(main())


def test_a_busy_wait_raises() -> None:
    """If a task on the virtual loop waits in a busy loop, the loop raises an error."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await rest(1)

    with pytest.raises(Spinning):
        run_virtually(main())


def test_steps_are_counted_within_an_instant() -> None:
    """`after_steps` calls a function between two steps of a task, to simulate a crash there."""
    seen: list[int] = []

    async def main() -> None:
        after_steps(2, lambda: seen.append(-1))
        for step in range(4):
            seen.append(step)
            await asyncio.sleep(0)

    run_virtually(main())
    assert seen.index(-1) == 2


def test_sets_of_tasks_have_one_order() -> None:
    """Tasks have the same hashes in every run, so sets of tasks have the same order."""

    async def numbers() -> list[int]:
        tasks = [asyncio.ensure_future(rest(1)) for _ in range(50)]
        await asyncio.gather(*tasks)
        return [hash(task) for task in tasks]

    assert run_virtually(numbers()) == run_virtually(numbers())
