"""Tests of the permissions of the binders' work queue, and of the queue after a server crash."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.server.embedded import ROLES
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import (
    Delivery,
    Ledger,
    LedgerUnavailable,
    NotPermitted,
    WorkQueue,
)
from tests.support.deliveries import taken
from tests.support.nats import Bus, PlainServer, draft, remake_stream
from tests.support.polling import until

PLACEMENTS = ("apportion.v1.placement.>",)
_INFO = f"CONSUMER.INFO.{STREAM}.binder"


async def _queue(ledger: Ledger, *, ack_wait_s: float = 30, max_in_flight: int = 100) -> WorkQueue:
    return await ledger.work_queue(
        "binder", PLACEMENTS, ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
    )


async def _placements(bus: Bus, count: int) -> None:
    scheduler = await bus.connect("scheduler")
    await scheduler.append([draft(f"placement.n{n}") for n in range(count)])


def _revisions(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.record.revision for delivery in deliveries]


async def test_an_acknowledged_record_never_comes_back(bus: Bus) -> None:
    """An acknowledged record is never redelivered, even after a restart of the server."""
    await _placements(bus, 3)
    queue = await _queue(await bus.connect("binder"), ack_wait_s=1)
    for delivery in await taken(queue, 2):
        await delivery.ack()
    assert await queue.waiting() == 1
    await bus.server.stop()
    await bus.restart()
    again = await _queue(await bus.connect("binder"), ack_wait_s=1)
    assert _revisions(await again.fetch(10, 20)) == [3]


async def test_a_server_that_was_killed_forgets_no_record(bus: Bus) -> None:
    """After a crash of the server every unacknowledged record is delivered again. An acknowledged
    record may be delivered again too."""
    await _placements(bus, 3)
    queue = await _queue(await bus.connect("binder"), ack_wait_s=1)
    for delivery in await taken(queue, 2):
        await delivery.ack()
    await bus.crash()
    await bus.restart()
    again = await _queue(await bus.connect("binder"), ack_wait_s=1)
    delivered: list[int] = []
    async with asyncio.timeout(45):
        while 3 not in delivered:
            delivered += _revisions(await again.fetch(10, 1))
    assert set(delivered) <= {1, 2, 3}


async def test_a_queue_that_cannot_be_made_says_why(bus: Bus) -> None:
    """If the queue cannot be created, the error contains the server's reason."""
    binder = await bus.connect("binder")
    twice = ["apportion.v1.placement.*", "apportion.v1.placement.>"]
    with pytest.raises(LedgerUnavailable, match="overlap"):
        await binder.work_queue("binder", twice, ack_wait_s=5, max_in_flight=10)


async def test_nobody_else_may_open_the_binders_queue(bus: Bus) -> None:
    """A client with another role cannot take placements from the binders' queue."""
    await _queue(await bus.connect("binder"))
    for role in set(ROLES) - {"binder", "auditor"}:
        with pytest.raises(NotPermitted):
            await _queue(await bus.connect(role), max_in_flight=1)


async def test_an_auditor_takes_no_placement_from_the_binders(bus: Bus) -> None:
    """An auditor's queue with the same name is in its own account, and takes no placement from the
    binders."""
    await _placements(bus, 3)
    auditors = await _queue(await bus.connect("auditor"), max_in_flight=1)
    assert _revisions(await auditors.fetch(3, 20)) == [1]
    binders = await _queue(await bus.connect("binder"))
    deliveries = await taken(binders, 3)
    assert _revisions(deliveries) == [1, 2, 3]
    assert all(delivery.attempt == 1 for delivery in deliveries)


async def test_a_worker_that_has_left_passes_on_what_still_comes(bus: Bus) -> None:
    """If a worker leaves while its request for a record is open, the record goes to the next worker
    at once."""
    ledger = await bus.connect("binder")
    leaver, stayer = await _queue(ledger), await _queue(await bus.connect("binder"))
    asking = asyncio.ensure_future(leaver.fetch(1, 30))

    async def asked() -> bool:
        return bool(json.loads(await call_api(ledger.wire, _INFO))["num_waiting"])

    await until(asked, "the server to know who asks")
    await leaver.leave()
    await _placements(bus, 1)
    (delivery,) = await stayer.fetch(1, 20)
    assert (delivery.record.revision, delivery.attempt) == (1, 2)
    asking.cancel()


async def test_a_queue_that_was_deleted_cannot_say_how_much_waits(tmp_path: Path) -> None:
    """If the queue was deleted, reading the number of waiting records raises an error instead of
    returning 0."""
    plain = PlainServer(tmp_path / "plain")
    await plain.start()
    ledger = await connect(plain.url, name="test")
    await remake_stream(ledger.wire, {"name": STREAM, "subjects": ["apportion.v1.>"]})
    queue = await _queue(ledger)
    assert await queue.waiting() == 0
    await call_api(ledger.wire, f"CONSUMER.DELETE.{STREAM}.binder")
    with pytest.raises(LedgerUnavailable, match="consumer not found"):
        await queue.waiting()
    await ledger.close()
    await plain.stop()
