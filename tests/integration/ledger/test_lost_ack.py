"""An append without an acknowledgement has an unknown outcome, and appending again is safe."""

import asyncio

import pytest

from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import DuplicateRefused, Ledger, OutcomeUnknown
from tests.support.nats import Bus, Proxy, draft
from tests.support.polling import until


async def _stored(ledger: Ledger, revision: int) -> None:
    async def there() -> bool:
        return await ledger.last_revision() >= revision

    await until(there, f"revision {revision} to be stored")


async def test_a_lost_ack_is_unknown_and_the_retry_finds_the_event(bus: Bus, proxy: Proxy) -> None:
    """If the server is killed after storing an event, the retry finds it: nothing is lost or stored
    twice."""
    witness = await bus.connect()
    ledger = await bus.connect(port=proxy.port, ack_timeout_s=10)
    proxy.mute()
    appending = asyncio.ensure_future(ledger.append([draft("workload.a", key="pod-1", expect=0)]))
    await _stored(witness, 1)
    await bus.crash()
    await proxy.cut()
    with pytest.raises(OutcomeUnknown, match="append again with the same ids"):
        await appending
    await bus.restart()
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.a", key="pod-1", expect=0)])
    assert refused.value.revision == 1
    assert await witness.last_revision() == 1


async def test_a_silent_server_is_unknown_after_the_timeout(bus: Bus, proxy: Proxy) -> None:
    """If the server sends no reply to an append, the outcome is unknown and not a failure, even if
    the connection stays up."""
    ledger = await bus.connect(port=proxy.port, ack_timeout_s=0.3)
    proxy.mute()
    with pytest.raises(OutcomeUnknown, match=r"no answer .* within 0\.3 s"):
        await ledger.append([draft()])


async def test_group_commit_appends_again_until_it_knows(bus: Bus, proxy: Proxy) -> None:
    """After a lost acknowledgement all writers still get their events' revisions, and each event is
    stored once."""
    witness = await bus.connect()
    ledger = await bus.connect(port=proxy.port, ack_timeout_s=10)
    async with GroupCommit(ledger) as commit:
        proxy.mute()
        writers = [
            asyncio.ensure_future(commit.append(draft(f"workload.{n}", key=f"pod-{n}")))
            for n in range(20)
        ]
        await _stored(witness, 20)
        await bus.crash()
        await proxy.cut()
        await bus.restart()
        appended = await asyncio.gather(*writers)
    assert sorted(one.revision or 0 for one in appended) == list(range(1, 21))
    assert all(one.already_there for one in appended)
    assert await witness.last_revision() == 20
