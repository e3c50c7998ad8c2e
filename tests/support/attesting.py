"""Attest snapshots that a test wrote, as an intake would."""

from apportion.core.ledger.snapshot import Taking
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.snapshots import Snapshots
from tests.support.nats import Bus


async def attest_all(bus: Bus) -> None:
    """Attest every snapshot so far, as an intake does."""
    snapshots = Snapshots((await bus.connect("intake")).wire)
    await snapshots.attest(each.key for each in await snapshots.written())


async def save_attested(bus: Bus, state: State) -> None:
    """Write a snapshot as a scheduler does, and attest it as an intake does."""
    await Snapshots((await bus.connect("scheduler")).wire).save(Taking(state).finish())
    await attest_all(bus)
