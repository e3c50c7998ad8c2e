"""Schedulers learn prices of devices from the pods in a real ledger. One scheduler records the
prices, and all use them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.core.ledger.invariants import violations
from apportion.core.ledger.state import State
from apportion_schemas import PodPlaced, PodRefused, PricesLearnt
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.ledger_of import replayed
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, cards, pod
from tests.support.processes import NO_AGENTS, ServiceProcess

SORTS = (ask(20_000, cores=25), ask(40_000, cores=50), ask(60_000, cores=70), cards(2))


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a NATS server with the stream and the shipped permissions."""
    async with running_bus(tmp_path) as running:
        yield running


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide the ledger's events so far, and a way to append new ones."""
    reading = Facts(bus)
    await reading.open()
    return reading


def scheduler_of(bus: Bus, name: str) -> ServiceProcess:
    """Return a scheduler with the shipped role."""
    return ServiceProcess("scheduler", bus.server.url_for("scheduler"), "--name", name, *NO_AGENTS)


async def submit(facts: Facts, count: int, first: int = 0) -> None:
    """Submit pods of several shapes."""
    numbers = range(first, first + count)
    await facts.write(*(pod(f"p{number:03}", SORTS[number % len(SORTS)]) for number in numbers))


def folded(facts: Facts) -> State:
    """Return the state that any reader folds from the ledger."""
    return replayed(*(event.data for _, event in facts.events))


async def test_schedulers_learn_from_twenty_pods_and_again_from_forty(
    bus: Bus, facts: Facts
) -> None:
    """Two schedulers together record prices of devices once after 20 submitted pods and once after
    40.

    Later placements use the recorded prices."""
    await facts.write(*(rack(f"n{number}", 8) for number in range(10)))
    async with scheduler_of(bus, "one") as one, scheduler_of(bus, "two") as two:
        await one.ready()
        await two.ready()
        await submit(facts, 19)
        await facts.count(PodPlaced, 19)
        assert not facts.of(PricesLearnt), "19 pods do not tell what usually comes"
        await submit(facts, 1, first=19)
        (first,) = await facts.count(PricesLearnt, 1)
        assert first.pods == 20
        assert sorted(shape.pods for shape in first.shapes) == [5, 5, 5, 5]
        await submit(facts, 20, first=20)
        learnt = await facts.count(PricesLearnt, 2)
        await facts.count(PodPlaced, 40)
        assert [prices.pods for prices in learnt] == [20, 40]
        assert not violations(folded(facts))
    by_price = [placed for placed in facts.of(PodPlaced) if "price" in placed.score.parts]
    assert by_price, "what was placed after the prices goes by them"
    assert all("bestfit" in placed.score.parts for placed in facts.of(PodPlaced)[:19])


async def test_a_scheduler_that_starts_late_learns_once(bus: Bus, facts: Facts) -> None:
    """A scheduler that starts after 100 submitted pods records prices only once."""
    await facts.write(*(rack(f"n{number}", 8) for number in range(4)))
    await submit(facts, 100)
    async with scheduler_of(bus, "one") as late:
        await late.ready()
        (prices,) = await facts.count(PricesLearnt, 1)
        assert prices.pods == 100
        await late.stop()
    async with scheduler_of(bus, "again") as again:
        await again.ready()
        await submit(facts, 1, first=100)
        await facts.until(
            lambda: any(each.pod == "p100" for each in facts.of(PodPlaced) + facts.of(PodRefused)),
            "the new pod to be decided",
        )
        await again.stop()
    assert len(facts.of(PricesLearnt)) == 1


async def test_without_devices_nothing_is_learnt(bus: Bus, facts: Facts) -> None:
    """The scheduler records prices only if the ledger has devices when a pod is submitted."""
    await submit(facts, 40)
    async with scheduler_of(bus, "one") as scheduler:
        await scheduler.ready()
        await facts.write(*(rack(f"n{number}", 8) for number in range(10)))
        await facts.count(PodPlaced, 40)
        assert not facts.of(PricesLearnt)
        await submit(facts, 1, first=40)
        (prices,) = await facts.count(PricesLearnt, 1)
        assert prices.pods == 41
