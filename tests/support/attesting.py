"""The word of an intake on snapshots that a test wrote, without an intake."""

from apportion.runtime.jetstream.snapshots import Snapshots
from tests.support.nats import Bus


async def attest_all(bus: Bus) -> None:
    """Attest every snapshot that is written now."""
    snapshots = Snapshots((await bus.connect("intake")).wire)
    await snapshots.attest(each.key for each in await snapshots.written())
