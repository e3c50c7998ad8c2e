"""What an intake shows an agent of its state."""

import pytest

from apportion.core.ledger.state import State
from apportion.intake.showing import Showing
from apportion.runtime.jetstream.client import Connection
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.process.reach import reach_of
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer


async def test_an_intake_whose_fold_has_halted_shows_no_part_of_its_state() -> None:
    """The state may hold half of a change; another intake answers when the agent asks again."""
    ledger, metrics, state = MemoryLedger(MemoryServer(), role="intake"), Metrics(), State()
    reader = Reader(ledger, StateFold(state), metrics=metrics)
    wire = Connection(reach_of("nats://127.0.0.1:4222"))
    showing = Showing(lambda: state, reader, ledger, wire, clock=SystemClock(), metrics=metrics)
    assert b"part" in showing._part("n1")
    reader.halted = "halted at revision 7"
    with pytest.raises(LedgerUnavailable):
        showing._part("n1")
