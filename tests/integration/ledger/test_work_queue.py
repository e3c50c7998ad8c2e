"""The shared queue: each record goes to one worker, and comes back until somebody is done."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.server.embedded import ROLES
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import (
    Delivery,
    Ledger,
    LedgerDrifted,
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


async def test_two_workers_share_the_records(bus: Bus) -> None:
    """Each placement is handed to exactly one of two replicas."""
    await _placements(bus, 10)
    queues = [await _queue(await bus.connect("binder")) for _ in range(2)]
    first: list[Delivery] = []
    second: list[Delivery] = []
    async with asyncio.timeout(45):
        while len(first) + len(second) < 10:
            first += await queues[0].fetch(6, 1)
            second += await queues[1].fetch(6, 1)
    for own in map(_revisions, (first, second)):
        assert own, "no more than six are asked for at a time"
        assert own == sorted(own)
    assert sorted(_revisions([*first, *second])) == list(range(1, 11))
    assert all(delivery.attempt == 1 for delivery in (*first, *second))


async def test_an_acknowledged_record_never_comes_back(bus: Bus) -> None:
    """Done is done, after a restart of the server too."""
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
    """At least once: what was not acknowledged comes back; of the rest, at most what was there."""
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


async def test_a_record_not_answered_in_time_goes_to_another_worker(bus: Bus) -> None:
    """A worker that died keeps nothing."""
    await _placements(bus, 1)
    dead = await bus.connect("binder")
    assert _revisions(await (await _queue(dead, ack_wait_s=0.5)).fetch(1, 20)) == [1]
    await dead.close()
    alive = await _queue(await bus.connect("binder"), ack_wait_s=0.5)
    (delivery,) = await alive.fetch(1, 20)
    assert (delivery.record.revision, delivery.attempt) == (1, 2)


async def test_progress_keeps_a_record_with_its_worker(bus: Bus) -> None:
    """A slow but living worker is not robbed."""
    await _placements(bus, 1)
    queue = await _queue(await bus.connect("binder"), ack_wait_s=3)
    (delivery,) = await queue.fetch(1, 20)
    other = await _queue(await bus.connect("binder"), ack_wait_s=3)
    for _ in range(8):
        await delivery.progress()
        assert await other.fetch(1, 0.5) == []
    await delivery.ack()


async def test_retry_comes_back_after_its_delay_and_not_before(bus: Bus) -> None:
    """A bind that failed is tried again later; others are not held up by it."""
    await _placements(bus, 2)
    queue = await _queue(await bus.connect("binder"))
    first, second = await taken(queue, 2)
    given_back_s = time.monotonic()
    await first.retry(1.0)
    await second.ack()
    (again,) = await queue.fetch(1, 20)
    assert time.monotonic() - given_back_s >= 1.0
    assert (again.record.revision, again.attempt) == (1, 2)


async def test_a_waiting_worker_is_woken_by_the_first_record(bus: Bus) -> None:
    """Nobody waits for a full batch."""
    queue = await _queue(await bus.connect("binder"))
    fetching = asyncio.ensure_future(queue.fetch(50, 30))
    await _placements(bus, 1)
    async with asyncio.timeout(20):
        assert _revisions(await fetching) == [1]


async def test_no_more_is_in_flight_than_allowed(bus: Bus) -> None:
    """Back-pressure: the server holds back what the workers have not answered."""
    await _placements(bus, 5)
    queue = await _queue(await bus.connect("binder"), max_in_flight=2)
    first, _ = await taken(queue, 2)
    assert await queue.fetch(5, 0.3) == []
    await first.ack()
    assert _revisions(await queue.fetch(5, 20)) == [3]


async def test_several_subjects_make_one_queue(bus: Bus) -> None:
    """A queue over two families of subjects hands out both."""
    await _placements(bus, 1)
    watcher = await bus.connect("watcher")
    await watcher.append([draft("workload.a"), draft("cluster.node.a")])
    binder = await bus.connect("binder")
    subjects = [*PLACEMENTS, "apportion.v1.workload.*"]
    queue = await binder.work_queue("binder", subjects, ack_wait_s=5, max_in_flight=10)
    assert _revisions(await taken(queue, 2)) == [1, 2]
    assert await queue.fetch(10, 0.3) == []


async def test_a_queue_set_up_differently_is_named_and_left_alone(bus: Bus) -> None:
    """A second version of the software does not silently change the queue of the first."""
    binder = await bus.connect("binder")
    await _queue(binder, max_in_flight=10)
    with pytest.raises(LedgerDrifted, match="consumer binder max_ack_pending") as drifted:
        await _queue(binder, max_in_flight=20)
    assert (drifted.value.found, drifted.value.wanted) == (10, 20)


async def test_a_queue_that_cannot_be_made_says_why(bus: Bus) -> None:
    """The server's own words, and not that there is no such queue."""
    binder = await bus.connect("binder")
    twice = ["apportion.v1.placement.*", "apportion.v1.placement.>"]
    with pytest.raises(LedgerUnavailable, match="overlap"):
        await binder.work_queue("binder", twice, ack_wait_s=5, max_in_flight=10)


async def test_nobody_else_may_open_the_binders_queue(bus: Bus) -> None:
    """A reader with another role cannot take placements away from the binders."""
    await _queue(await bus.connect("binder"))
    for role in set(ROLES) - {"binder", "auditor"}:
        with pytest.raises(NotPermitted):
            await _queue(await bus.connect(role), max_in_flight=1)


async def test_an_auditor_takes_no_placement_from_the_binders(bus: Bus) -> None:
    """What it makes under the queue's name is in its own account, over the copy."""
    await _placements(bus, 3)
    auditors = await _queue(await bus.connect("auditor"), max_in_flight=1)
    assert _revisions(await auditors.fetch(3, 20)) == [1]
    binders = await _queue(await bus.connect("binder"))
    deliveries = await taken(binders, 3)
    assert _revisions(deliveries) == [1, 2, 3]
    assert all(delivery.attempt == 1 for delivery in deliveries)


async def test_a_worker_that_has_left_passes_on_what_still_comes(bus: Bus) -> None:
    """The server may hand it a record that it asked for before; the next worker has it at once."""
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
    """That is said, and no number made up."""
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
