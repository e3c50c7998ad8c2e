"""An append is stored as a whole or not at all, whatever its size and whatever fails."""

import asyncio

import pytest

from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.port import (
    MAX_PAYLOAD_BYTES,
    InvalidDraft,
    LedgerError,
    LedgerUnavailable,
    PayloadTooLarge,
)
from tests.support.nats import Bus, draft
from tests.support.polling import until

OPEN_BATCHES_OF_THE_SERVER = 50


async def test_a_batch_of_a_thousand_gets_consecutive_revisions(bus: Bus) -> None:
    """A batch of the maximum size, 1,000 events, is stored with consecutive revisions. The append
    returns each event's revision."""
    ledger = await bus.connect()
    await ledger.append([draft()])
    revisions = await ledger.append([draft(f"workload.{n}") for n in range(1000)])
    assert revisions == list(range(2, 1002))
    assert await ledger.last_on_subject("apportion.v1.workload.998") == 1000


async def test_a_batch_beyond_a_thousand_is_refused_unsent(bus: Bus) -> None:
    """The client refuses a batch of more than 1,000 events before sending it. The error names the
    limit."""
    ledger = await bus.connect()
    with pytest.raises(InvalidDraft, match="at most 1000"):
        await ledger.append([draft() for _ in range(1001)])
    assert await ledger.last_revision() == 0


async def test_no_drafts_append_nothing(bus: Bus) -> None:
    """Appending an empty list of events stores nothing."""
    ledger = await bus.connect()
    assert await ledger.append([]) == []


async def test_the_largest_payload_is_stored_and_one_byte_more_refused(bus: Bus) -> None:
    """The server stores a payload of the maximum size, even with the longest id and subject. It
    refuses a payload that is one byte larger."""
    ledger = await bus.connect()
    subject, name = "workload." + "s" * 800, "i" * 512
    whole = draft(subject, key=name, payload=b"x" * MAX_PAYLOAD_BYTES, expect=0)
    assert await ledger.append([whole]) == [1]
    assert await ledger.append([draft(payload=b"y" * MAX_PAYLOAD_BYTES), draft()]) == [2, 3]
    with pytest.raises(PayloadTooLarge, match="1044481 bytes"):
        await ledger.append([draft(payload=b"x" * (MAX_PAYLOAD_BYTES + 1))])


async def test_a_batch_cut_short_stores_nothing(bus: Bus) -> None:
    """A writer that dies between two messages of its batch leaves nothing in the ledger."""
    ledger = await bus.connect()
    for number in range(1, 4):
        headers = {"Nats-Batch-Id": "cut", "Nats-Batch-Sequence": str(number)}
        await ledger.wire.publish("apportion.v1.workload.a", b"{}", headers=headers)
    await ledger.close()
    other = await bus.connect()
    assert await other.append([draft()]) == [1]


async def test_too_many_open_batches_are_said_and_nothing_is_stored(bus: Bus) -> None:
    """With too many open batches an append fails with the server's reason, and can be retried."""
    ledger = await bus.connect()
    for number in range(OPEN_BATCHES_OF_THE_SERVER):
        headers = {"Nats-Batch-Id": f"open-{number}", "Nats-Batch-Sequence": "1"}
        await ledger.wire.publish("apportion.v1.workload.a", b"{}", headers=headers)
    with pytest.raises(LedgerUnavailable, match="too many inflight"):
        await ledger.append([draft(), draft()])
    assert await ledger.append([draft()]) == [1]


@pytest.mark.parametrize("grown_bytes", [1, 200_000, 1_000_000, 2_000_000])
async def test_a_server_killed_in_the_middle_of_a_commit_never_keeps_a_part(
    bus: Bus, grown_bytes: int
) -> None:
    """A server killed while it stores a batch comes back with the whole batch or none of it."""
    size = 500
    ledger = await bus.connect(ack_timeout_s=5)
    await ledger.append([draft()])
    # The auditors' copy and the buckets have blocks too.
    block = next(bus.data_dir.rglob(f"APPORTION/streams/{STREAM}/msgs/*.blk"))
    empty = block.stat().st_size
    batch = [draft(f"workload.{n}", payload=b"x" * 4000) for n in range(size)]
    appending = asyncio.ensure_future(ledger.append(batch))

    async def growing() -> bool:
        return block.stat().st_size >= empty + grown_bytes

    await until(growing, "the batch to reach the file", interval_s=0)
    await bus.crash()
    (outcome,) = await asyncio.gather(appending, return_exceptions=True)
    await bus.restart()
    after = await ledger.last_revision()
    assert after in ({1 + size} if isinstance(outcome, list) else {1, 1 + size})


@pytest.mark.parametrize(
    ("role", "api"), [("operator", "STREAM.PURGE"), ("bootstrap", "STREAM.MSG.DELETE")]
)
async def test_nobody_can_make_the_stream_forget_an_event(bus: Bus, role: str, api: str) -> None:
    """Permissions let no role delete an event from the stream; only the oldest events can be
    trimmed. See also test_permissions."""
    ledger = await bus.connect(role)
    with pytest.raises(LedgerError, match=rf"not permit user '{role}' to send to .*{api}"):
        await ledger.request(f"$JS.API.{api}.{STREAM}", b"", 30)
