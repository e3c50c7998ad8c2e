"""Tests of agent requests that reach an intake while it shuts down."""

import asyncio
import random

import msgspec
import pytest

from apportion.core.intake.answers import subject_of_node
from apportion.core.ledger.fold import Change
from apportion.intake.taking import Refusals, Taking
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer


class Question(msgspec.Struct):
    """A request that records the answers it gets."""

    subject: str
    reply: str = "_INBOX_agent.1"
    payload: bytes = b"?"
    answers: list[bytes] = []

    async def answer(self, payload: bytes) -> None:
        self.answers.append(payload)


async def unused(_draft: Draft) -> Appended:
    """Fail the test if the intake appends an event."""
    raise AssertionError


def taking_of(ledger: MemoryLedger) -> tuple[Taking, Reader[Change]]:
    """Return the intake's request handler over this ledger, and its ledger reader."""
    clock, metrics, cluster = SkewedClock(random.Random(0), skew_s=0.0), Metrics(), StateFold()
    reader: Reader[Change] = Reader(ledger, cluster, metrics=metrics, writes="agent")
    refusals = Refusals(Publisher("intake", clock, unused), clock, metrics)
    taking = Taking(cluster.state, reader, ledger, unused, refusals, clock=clock, metrics=metrics)
    return taking, reader


@pytest.mark.filterwarnings("error")
def test_what_is_asked_once_a_life_is_over_is_passed_over() -> None:
    """A request that arrives after the intake has stopped is ignored without a warning."""

    async def ask() -> None:
        taking, reader = taking_of(MemoryLedger(MemoryServer(), role="intake"))
        reading, life = asyncio.create_task(reader.run()), asyncio.create_task(taking.run())
        while taking.not_ready():
            await rest(0.1)
        before, after = (Question(subject_of_node("n1")) for _ in range(2))
        taking.take(before)
        await rest(1)
        life.cancel()
        await asyncio.wait({life})
        taking.take(after)
        await rest(1)
        reading.cancel()
        assert (len(before.answers), after.answers) == (1, [])

    run_virtually(ask())
