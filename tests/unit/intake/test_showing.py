"""Tests of the part of the cluster's state that an intake sends to an agent."""

from random import Random

import pytest

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.intake.reads import Showing
from apportion.runtime.jetstream.client import Connection
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.process.reach import reach_of
from tests.support.fleet import gpu, node
from tests.support.happenings import happen
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import ask, placed, pod, share


def showing_of(state: State) -> tuple[Showing, Reader[Change]]:
    """Return the component that sends this state to agents, and the ledger reader behind it."""
    ledger, metrics = MemoryLedger(MemoryServer(), role="intake"), Metrics()
    reader = Reader(ledger, StateFold(state), metrics=metrics)
    wire = Connection(reach_of("nats://127.0.0.1:4222"))
    return Showing(
        lambda: state, reader, ledger, wire, clock=SystemClock(), metrics=metrics
    ), reader


async def test_an_intake_whose_fold_has_halted_shows_no_part_of_its_state() -> None:
    """An intake whose fold has halted sends no state to agents, because that state may be
    incomplete."""
    showing, reader = showing_of(State())
    assert b"part" in showing._part("n1")
    reader.halted = "halted at revision 7"
    with pytest.raises(LedgerUnavailable):
        showing._part("n1")


async def test_the_labels_of_pods_never_make_a_part_too_large() -> None:
    """The state that an intake sends to an agent has no pod labels. Otherwise a tenant's labels
    could make it too large."""
    state, random = State(), Random(0)
    happen(state, node("n1", gpu("g0")))
    for name in ("p1", "p2"):
        labels = {f"{random.randbytes(28).hex()}": random.randbytes(31).hex() for _ in range(7_000)}
        happen(state, pod(name, ask(1000), labels=labels))
        happen(state, placed(name, "n1", [share("g0")]))
    assert len(showing_of(state)[0]._part("n1")) < 5_000
