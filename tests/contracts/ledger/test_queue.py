"""Contract tests of the work queue, which gives each record to one worker until that worker
acknowledges the record.

A record that is not acknowledged in time is delivered again."""

import asyncio
from collections.abc import Sequence

import pytest

from apportion.runtime.ledger.port import (
    Delivery,
    Ledger,
    LedgerDrifted,
    LedgerUnavailable,
    NotPermitted,
    WorkQueue,
)
from tests.contracts.ledger.places import Place
from tests.support.deliveries import taken
from tests.support.nats import draft
from tests.support.polling import WAIT_S

PLACEMENTS = ("apportion.v1.placement.>",)


async def _queue(ledger: Ledger, *, ack_wait_s: float = 30, max_in_flight: int = 100) -> WorkQueue:
    return await ledger.work_queue(
        "binder", PLACEMENTS, ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
    )


async def _placements(place: Place, count: int) -> None:
    scheduler = await place.connect("scheduler")
    await scheduler.append([draft(f"placement.n{n}") for n in range(count)])


def _revisions(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.record.revision for delivery in deliveries]


async def test_two_workers_share_the_records(place: Place) -> None:
    """If two workers share a queue, each record goes to exactly one of them, in order."""
    await _placements(place, 10)
    queues = [await _queue(await place.connect("binder")) for _ in range(2)]
    shares: list[list[Delivery]] = [[], []]
    async with asyncio.timeout(WAIT_S):
        while sum(map(len, shares)) < 10:
            for queue, share in zip(queues, shares, strict=True):
                share.extend(await queue.fetch(6, 1))  # a fetch may return a part
    first, second = map(_revisions, shares)
    assert sorted(first + second) == list(range(1, 11))
    assert (first, second) == (sorted(first), sorted(second))
    assert first
    assert second
    assert all(delivery.attempt == 1 for share in shares for delivery in share)
    assert shares[0][0].record.subject == "apportion.v1.placement.n0"


async def test_an_acknowledged_record_never_comes_back(place: Place) -> None:
    """An acknowledged record is never delivered again.

    The queue's `waiting` counts all records that are not acknowledged, whether delivered or not."""
    await _placements(place, 4)
    queue = await _queue(await place.connect("binder"), ack_wait_s=5)
    assert await queue.waiting() == 4
    for delivery in (await taken(queue, 3))[:2]:
        await delivery.ack()
        await delivery.ack()
    assert await queue.waiting() == 2
    again: set[int] = set()
    async with asyncio.timeout(WAIT_S):
        while not again >= {3, 4}:
            again |= set(_revisions(await queue.fetch(10, 1)))
    assert again == {3, 4}


async def test_a_record_not_answered_in_time_goes_to_another_worker(place: Place) -> None:
    """If a worker does not acknowledge a record in time, the record goes to another worker.

    A late acknowledgement by the first worker still counts."""
    await _placements(place, 1)
    dead = await place.connect("binder")
    (first,) = await taken(await _queue(dead, ack_wait_s=3), 1)
    alive = await _queue(await place.connect("binder"), ack_wait_s=3)
    (second,) = await taken(alive, 1)
    assert (second.record.revision, second.attempt) == (1, 2)
    await first.ack()
    assert await alive.fetch(1, 1) == []


async def test_a_leaving_worker_releases_its_records(place: Place) -> None:
    """When a worker leaves, its unacknowledged records go to another worker before their
    timeout."""
    queue = await _queue(await place.connect("binder"))
    fetching = asyncio.ensure_future(queue.fetch(1, 3))
    await asyncio.sleep(0)
    await queue.leave()
    await _placements(place, 3)
    for delivery in await fetching:
        await delivery.retry(0)
    other = await _queue(await place.connect("binder"))
    found: set[int] = set()
    async with asyncio.timeout(20):
        while len(found) < 3:
            for delivery in await other.fetch(3, 1):
                found.add(delivery.record.revision)
                await delivery.ack()
    assert found == {1, 2, 3}


async def _keeps(delivery: Delivery, other: WorkQueue, held_s: float) -> bool:
    """Report progress on a delivery until after its acknowledgement timeout of `held_s`.

    Fail if the other worker gets the record. Return False if the test machine stalled for longer
    than the timeout, because the result then proves nothing."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1.2 * held_s
    before_s = loop.time()
    while (round_s := loop.time()) < end_s:
        await delivery.progress()
        robbed = await other.fetch(1, 0.3)
        if loop.time() - before_s > held_s:
            return False
        assert robbed == []
        before_s = round_s
    return True


async def test_progress_keeps_a_record_with_its_worker(place: Place) -> None:
    """A worker that reports progress keeps its record longer than the acknowledgement timeout."""
    await _placements(place, 1)
    queue = await _queue(await place.connect("binder"), ack_wait_s=2)
    other = await _queue(await place.connect("binder"), ack_wait_s=2)
    (delivery,) = await taken(queue, 1)
    while not await _keeps(delivery, other, 2):
        (delivery,) = await taken(queue, 1)
    await delivery.ack()


async def test_retry_comes_back_after_its_delay_and_not_before(place: Place) -> None:
    """A worker can ask for a retry: the record comes back after the delay, with a higher attempt
    number.

    In the meantime the queue delivers other records."""
    await _placements(place, 2)
    queue, loop = await _queue(await place.connect("binder")), asyncio.get_running_loop()
    first, second = await taken(queue, 2)
    put_off_s = loop.time()
    await first.retry(0.8)
    await second.ack()
    (again,) = await taken(queue, 1)
    assert loop.time() - put_off_s > 0.75
    assert (again.record.revision, again.attempt) == (1, 2)


async def test_a_waiting_worker_is_woken_by_the_first_record(place: Place) -> None:
    """A waiting worker gets the first record at once, without waiting for a full batch."""
    queue = await _queue(await place.connect("binder"))
    fetching = asyncio.ensure_future(queue.fetch(50, 30))
    await asyncio.sleep(0)
    await _placements(place, 1)
    async with asyncio.timeout(20):
        assert _revisions(await fetching) == [1]


async def test_the_limit_in_flight_holds_for_all_workers(place: Place) -> None:
    """The limit on unacknowledged records applies to all workers of a queue together."""
    await _placements(place, 5)
    queue = await _queue(await place.connect("binder"), max_in_flight=2)
    first, second = await taken(queue, 2)
    assert _revisions([first, second]) == [1, 2]
    assert await queue.fetch(5, 0.3) == []
    await first.ack()
    assert _revisions(await taken(queue, 1)) == [3]
    assert await queue.fetch(5, 0.3) == []


async def test_several_subjects_make_one_queue(place: Place) -> None:
    """A queue of several subjects delivers the records of all these subjects and no others."""
    await _placements(place, 1)
    watcher = await place.connect("watcher")
    await watcher.append([draft("cluster.node.a"), draft("workload.a")])
    binder = await place.connect("binder")
    subjects = [*PLACEMENTS, "apportion.v1.workload.*"]
    queue = await binder.work_queue("binder", subjects, ack_wait_s=5, max_in_flight=10)
    assert _revisions(await taken(queue, 2)) == [1, 3]


async def test_a_queue_with_other_settings_is_reported(place: Place) -> None:
    """Opening an existing queue with other settings fails, and leaves the queue unchanged."""
    binder = await place.connect("binder")
    await _queue(binder, max_in_flight=10)
    with pytest.raises(LedgerDrifted, match="consumer binder max_ack_pending") as drifted:
        await _queue(binder, max_in_flight=20)
    assert (drifted.value.found, drifted.value.wanted) == (10, 20)
    await _queue(binder, max_in_flight=10)


async def test_only_binders_may_open_the_queue(place: Place) -> None:
    """The server's permissions let only binders open the queue."""
    for role in ("scheduler", "watcher", "operator"):
        with pytest.raises(NotPermitted):
            await _queue(await place.connect(role))


async def test_a_lost_acknowledgement_is_reported(place: Place) -> None:
    """If an acknowledgement cannot be sent, `ack` raises an error, because the queue may deliver
    the record again."""
    await _placements(place, 1)
    ledger = await place.connect("binder", shaky=True)
    (delivery,) = await taken(await _queue(ledger), 1)
    await ledger.close()
    with pytest.raises(LedgerUnavailable):
        await delivery.ack()
