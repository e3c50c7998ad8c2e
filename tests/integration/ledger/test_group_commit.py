"""Group commit: the events of many writers are appended as one batch, and each writer gets its own
result."""

import asyncio

import pytest

from apportion.runtime.ledger.batching import FEW_DRAFTS, Appended, GroupCommit
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    FenceRefused,
    InvalidDraft,
    LedgerFull,
    LedgerUnavailable,
    NotPermitted,
    Record,
)
from tests.support.nats import Bus, draft, ignore, running_bus


async def test_concurrent_writers_share_batches_and_learn_their_revisions(bus: Bus) -> None:
    """A thousand concurrent writers share a few batches. Each writer gets its event's revision."""
    outcomes: list[tuple[str, int]] = []
    ledger = await bus.connect(watch=lambda outcome, size, _s: outcomes.append((outcome, size)))
    async with GroupCommit(ledger) as commit:
        drafts = [draft(f"workload.{n}") for n in range(1000)]
        appended = await asyncio.gather(*(commit.append(one) for one in drafts))
    subjects: dict[int, str] = {}

    def note(record: Record) -> None:
        subjects[record.revision] = record.subject

    following = await ledger.follow(note)
    await following.caught_up()
    assert [subjects[one.revision or 0] for one in appended] == [one.subject for one in drafts]
    assert sum(size for _, size in outcomes) == 1000
    assert len(outcomes) <= 10
    assert max(size for _, size in outcomes) <= 256


async def test_a_lone_writer_does_not_wait_for_company(bus: Bus) -> None:
    """If only one writer appends an event, the event is sent at once and waits for no timer."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit, asyncio.timeout(30):
        assert await commit.append(draft()) == Appended(1)
        assert await commit.append(draft()) == Appended(2)


async def test_one_stale_fence_sinks_nobody_else(bus: Bus) -> None:
    """If an event expects an outdated revision, only its writer gets an error. The other events of
    the batch are stored."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.3")])
    async with GroupCommit(ledger) as commit:
        drafts = [draft(f"workload.{n}", expect=0) for n in range(6)]
        results = await asyncio.gather(
            *(commit.append(one) for one in drafts), return_exceptions=True
        )
    refused = results.pop(3)
    assert isinstance(refused, FenceRefused)
    assert refused.found == 1
    assert sorted(one.revision or 0 for one in results if isinstance(one, Appended)) == [
        2, 3, 4, 5, 6,
    ]  # fmt: skip


async def test_duplicates_are_answered_as_there_already(bus: Bus) -> None:
    """If a second watcher appends the same events, nothing is stored twice, and each event is
    reported as already there."""
    ledger = await bus.connect()
    for n in (1, 4):
        await ledger.append([draft(f"workload.{n}", key=f"pod-{n}")])
    async with GroupCommit(ledger) as commit:
        drafts = [draft(f"workload.{n}", key=f"pod-{n}") for n in range(6)]
        results = await asyncio.gather(*(commit.append(one) for one in drafts))
    assert [one.already_there for one in results] == [False, True, False, False, True, False]
    assert (results[1].revision, results[4].revision) == (1, 2)
    assert await ledger.last_revision() == 6


async def test_two_writers_of_one_id_at_once_store_it_once(bus: Bus) -> None:
    """If two writers append an event with the same id, even in one batch, it is stored once and
    both writers get its revision."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit:
        one, two, other = await asyncio.gather(
            commit.append(draft("workload.a", key="same")),
            commit.append(draft("workload.a", key="same")),
            commit.append(draft("workload.b")),
        )
    assert sorted([one.already_there, two.already_there]) == [False, True]
    assert one.revision == two.revision
    assert not other.already_there
    assert await ledger.last_revision() == 2


async def test_two_fences_on_one_subject_are_checked_one_after_the_other(bus: Bus) -> None:
    """If two concurrent events on one subject expect the same revision, the first is stored and the
    second is refused."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit:
        results = await asyncio.gather(
            *(commit.append(draft("workload.n1", expect=0)) for _ in range(2)),
            return_exceptions=True,
        )
    assert results[0] == Appended(1)
    assert isinstance(results[1], FenceRefused)


async def test_a_group_is_all_or_none_beside_others(bus: Bus) -> None:
    """If one event of a gang expects an outdated revision, all events of the gang are refused.
    Another writer's event is still stored."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.b")])
    async with GroupCommit(ledger) as commit:
        gang = [draft("workload.a", expect=0), draft("workload.b", expect=0)]
        refused, stored, whole = await asyncio.gather(
            commit.append_group(gang),
            commit.append(draft("workload.c", expect=0)),
            commit.append_group([draft("workload.d"), draft("workload.e")]),
            return_exceptions=True,
        )
    assert isinstance(refused, FenceRefused)
    assert refused.subject == "apportion.v1.workload.b"
    assert isinstance(stored, Appended)
    assert isinstance(whole, list)
    assert await ledger.last_on_subject("apportion.v1.workload.a") == 0
    assert await ledger.last_revision() == 4


async def test_a_group_stored_before_is_there_already(bus: Bus) -> None:
    """Appending a gang again stores nothing and reports each event as already there."""
    ledger = await bus.connect()
    gang = [draft("workload.a", key="g-1", expect=0), draft("workload.b", key="g-2", expect=0)]
    async with GroupCommit(ledger) as commit:
        assert await commit.append_group(gang) == [Appended(1), Appended(2)]
        again = await commit.append_group(gang)
    assert all(one.already_there for one in again)
    assert await ledger.last_revision() == 2


async def test_a_foreign_event_under_the_id_of_one_is_no_success(bus: Bus) -> None:
    """An append fails if a different event is already stored under the event's id, alone or in a
    group. If the stored event is equal, the append succeeds."""
    ledger = await bus.connect()
    foreign = b'{"id":"g-2","type":"another"}'
    await ledger.append([draft("workload.z", key="g-2", payload=foreign)])
    one = draft("workload.b", key="g-2", payload=b'{"id":"g-2","type":"submitted"}')
    async with GroupCommit(ledger) as commit:
        for group in ([one], [draft("workload.a", key="g-1"), one]):
            with pytest.raises(DuplicateRefused):
                await commit.append_group(group)
        again = draft("workload.c", key="g-2", payload=foreign)
        assert (await commit.append(again)).already_there
    assert await ledger.last_revision() == 1


async def test_a_group_whose_subjects_went_on_is_found(bus: Bus) -> None:
    """If a group of events is appended again, it is recognised as stored, even if its subjects have
    newer events."""
    ledger = await bus.connect()
    gang = [draft("workload.a", key="g-1"), draft("workload.b", key="g-2", expect=0)]
    async with GroupCommit(ledger) as commit:
        await commit.append_group(gang)
        await commit.append_group([draft("workload.a"), draft("workload.b")])
        assert all(each.already_there for each in await commit.append_group(gang))


async def test_an_invalid_draft_is_refused_before_it_meets_the_others(bus: Bus) -> None:
    """The client refuses an invalid event without a round trip to the server."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit:
        with pytest.raises(InvalidDraft):
            await commit.append(draft("workload.*"))
        assert await commit.append_group([]) == []


async def test_a_forbidden_draft_sinks_nobody_else(bus: Bus) -> None:
    """If an event is on a subject of another role, only its writer gets an error."""
    ledger = await bus.connect("watcher")
    async with GroupCommit(ledger) as commit:
        results = await asyncio.gather(
            commit.append(draft("workload.a")),
            commit.append(draft("placement.n1")),
            commit.append(draft("workload.b")),
            return_exceptions=True,
        )
    assert isinstance(results[1], NotPermitted)
    assert isinstance(results[0], Appended)
    assert isinstance(results[2], Appended)


async def test_a_full_ledger_is_told_to_every_writer(tmp_path: object) -> None:
    """When the ledger is full, every writer gets LedgerFull at once."""
    async with running_bus(tmp_path / "data", max_bytes=1000) as bus:  # type: ignore[operator]
        ledger = await bus.connect()
        async with GroupCommit(ledger) as commit:
            results = await asyncio.gather(
                *(commit.append(draft(payload=b"x" * 1_000)) for _ in range(5)),
                return_exceptions=True,
            )
    assert all(isinstance(one, LedgerFull) for one in results)


async def test_the_queue_is_bounded_and_nothing_is_lost_by_waiting(bus: Bus) -> None:
    """Writers wait for their turn while the queue of events is full, and all events are stored."""
    ledger = await bus.connect()
    async with GroupCommit(ledger, queue_limit=4, max_drafts=3) as commit:
        writers = [asyncio.ensure_future(commit.append(draft())) for _ in range(50)]
        await asyncio.wait(writers, return_when=asyncio.FIRST_COMPLETED)
        assert commit.queued <= 4
        appended = await asyncio.gather(*writers)
    assert sorted(one.revision or 0 for one in appended) == list(range(1, 51))


async def test_batches_keep_within_their_bytes(bus: Bus) -> None:
    """A batch contains as many events as fit into its byte limit. An event near that limit is sent
    by itself."""
    sizes: list[int] = []
    ledger = await bus.connect(watch=lambda _outcome, size, _s: sizes.append(size))
    async with GroupCommit(ledger, max_bytes=250_000) as commit:
        await asyncio.gather(*(commit.append(draft(payload=b"x" * 20_000)) for _ in range(30)))
        await commit.append(draft(payload=b"x" * 600_000))
    assert max(sizes) == 12
    assert sum(sizes) == 31


async def test_few_drafts_go_one_by_one(bus: Bus) -> None:
    """A few concurrent events are appended one by one, each with its own result. More events become
    one batch."""
    sizes: list[int] = []
    ledger = await bus.connect(watch=lambda _outcome, size, _s: sizes.append(size))
    async with GroupCommit(ledger) as commit:
        stale = draft("workload.stale", expect=7)
        drafts = [draft(), stale, *(draft() for _ in range(FEW_DRAFTS - 2))]
        few = await asyncio.gather(*map(commit.append, drafts), return_exceptions=True)
        assert sizes == [1] * FEW_DRAFTS
        many = await asyncio.gather(*(commit.append(draft()) for _ in range(FEW_DRAFTS + 1)))
    assert isinstance(few.pop(1), FenceRefused)
    assert [one.revision for one in few if isinstance(one, Appended)] == list(range(1, FEW_DRAFTS))
    assert sizes[FEW_DRAFTS:] == [FEW_DRAFTS + 1]
    assert [one.revision for one in many] == list(range(FEW_DRAFTS, 2 * FEW_DRAFTS + 1))


async def test_closing_stores_what_was_handed_in_and_takes_no_more(bus: Bus) -> None:
    """When the GroupCommit's `async with` block ends, it stores all pending events. A later append
    fails."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit:
        writers = [asyncio.ensure_future(commit.append(draft())) for _ in range(20)]
        await asyncio.wait(writers, timeout=0)
    assert [one.revision for one in await asyncio.gather(*writers)] == list(range(1, 21))
    with pytest.raises(LedgerUnavailable, match="closing"):
        await commit.append(draft())


async def test_a_cancelled_writer_does_not_disturb_the_others(bus: Bus) -> None:
    """A cancelled writer does not affect the other writers of its batch."""
    ledger = await bus.connect()
    async with GroupCommit(ledger) as commit:
        writers = [asyncio.ensure_future(commit.append(draft())) for _ in range(10)]
        await asyncio.wait(writers, timeout=0)
        writers[4].cancel()
        results = await asyncio.gather(*writers, return_exceptions=True)
    assert isinstance(results[4], asyncio.CancelledError)
    assert len([one for one in results if isinstance(one, Appended)]) == 9


async def test_a_server_killed_under_group_commit_loses_and_doubles_nothing(bus: Bus) -> None:
    """While the server crashes and restarts, writers wait. No event is lost or stored twice."""
    ledger = await bus.connect()
    seen: list[Record] = []
    following = await ledger.follow(seen.append)
    async with GroupCommit(ledger) as commit:
        for crash in (False, True, True):
            writers = [asyncio.ensure_future(commit.append(draft())) for _ in range(600)]
            if crash:
                await asyncio.wait(writers, return_when=asyncio.FIRST_COMPLETED)
                await bus.crash()
                await bus.restart()
            revisions = [one.revision for one in await asyncio.gather(*writers)]
            assert len(set(revisions)) == 600
    again = await ledger.follow(ignore)
    await again.caught_up()
    assert again.position == 1800
    await following.caught_up()
