"""Contract tests of appending to the ledger: fences, duplicate ids, batches, limits and lost
replies.

A fence is the revision that a writer expects to be the last one on a subject."""

import asyncio

import pytest

from apportion.runtime.ledger.port import (
    MAX_PAYLOAD_BYTES,
    DuplicateRefused,
    FenceRefused,
    InvalidDraft,
    LedgerFull,
    LedgerUnavailable,
    NotPermitted,
    OutcomeUnknown,
    PayloadTooLarge,
)
from tests.contracts.ledger.places import WINDOW_S, LawlessPlace, Place
from tests.support.nats import draft
from tests.support.polling import until


async def test_revisions_count_from_one(place: Place) -> None:
    """Revisions count from 1, and an append returns one revision for each event."""
    ledger = await place.connect()
    assert await ledger.last_revision() == 0
    assert await ledger.append([draft()]) == [1]
    assert await ledger.append([]) == []
    revisions = await ledger.append([draft(f"workload.{n}") for n in range(1000)])
    assert revisions == list(range(2, 1002))
    assert await ledger.last_revision() == 1001
    assert await ledger.last_on_subject("apportion.v1.workload.998") == 1000
    assert await ledger.last_on_subject("apportion.v1.workload.none") == 0
    record = await ledger.record_at(1000)
    assert record is not None
    assert (record.revision, record.subject) == (1000, "apportion.v1.workload.998")
    assert await ledger.record_at(1_002) is None


async def test_a_stale_fence_is_refused_with_the_current_revision(place: Place) -> None:
    """The ledger refuses a stale fence and reports the subject's last revision.

    A fence is the revision that the writer expects to be the subject's last. The ledger accepts an
    event whose fence is correct."""
    ledger = await place.connect()
    assert await ledger.append([draft("workload.a", expect=0)]) == [1]
    assert await ledger.append([draft("workload.b")]) == [2]
    assert await ledger.append([draft("workload.a", expect=1)]) == [3]
    for expect, subject, found in (
        (1, "workload.a", 3),
        (0, "workload.b", 2),
        (7, "workload.c", 0),
    ):
        with pytest.raises(FenceRefused) as refused:
            await ledger.append([draft(subject, expect=expect)])
        said = refused.value
        assert (said.subject, said.expected, said.found) == (
            f"apportion.v1.{subject}",
            expect,
            found,
        )
    assert await ledger.last_revision() == 3


async def test_one_stale_fence_refuses_the_whole_batch_and_is_named(place: Place) -> None:
    """If one fence in a batch is stale, the ledger refuses the whole batch. The error names the
    subject of that fence."""
    ledger = await place.connect()
    await ledger.append([draft("workload.b")])
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft(f"workload.{name}", expect=0) for name in ("a", "b", "c")])
    assert (refused.value.subject, refused.value.found) == ("apportion.v1.workload.b", 1)
    assert await ledger.last_revision() == 1


async def test_several_drafts_of_a_subject_share_the_fence_of_the_first(place: Place) -> None:
    """If a batch has several events on one subject, a fence on the first event covers them all. The
    client refuses a batch in which only a later event on the subject has a fence."""
    ledger = await place.connect()
    batch = [draft("workload.a", expect=0), draft("workload.a", expect=0), draft("workload.a")]
    assert await ledger.append(batch) == [1, 2, 3]
    with pytest.raises(InvalidDraft, match="set expect only on the first draft"):
        await ledger.append([draft("workload.a"), draft("workload.a", expect=3)])


async def test_one_of_two_writers_with_the_same_fence_wins(place: Place) -> None:
    """If two writers append at the same time with the same fence on a subject, exactly one
    succeeds."""
    writers = [await place.connect("scheduler") for _ in range(2)]
    outcomes = await asyncio.gather(
        *(writer.append([draft("placement.n1", expect=0)]) for writer in writers),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes if outcome != [1]] == [FenceRefused]


async def test_a_repeated_id_is_refused(place: Place) -> None:
    """The ledger refuses an event whose id was used before, even on another subject or inside a
    batch. It also refuses a batch that has the same id twice."""
    ledger = await place.connect()
    await ledger.append([draft("workload.z")])
    await ledger.append([draft("workload.a", key="one")])
    for subject in ("workload.a", "workload.b"):
        with pytest.raises(DuplicateRefused) as refused:
            await ledger.append([draft(subject, key="one")])
        assert (refused.value.ids, refused.value.revision) == (("one",), 2)
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.b", key="two"), draft("workload.c", key="one")])
    assert (refused.value.ids, refused.value.revision) == (("two", "one"), None)
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft(key="x"), draft(key="y"), draft(key="x")])
    assert refused.value.ids == ("x",)
    assert await ledger.last_revision() == 2


@pytest.mark.parametrize("moved_on", [False, True])
async def test_a_repeated_fenced_draft_is_a_duplicate_and_not_stale(
    place: Place, *, moved_on: bool
) -> None:
    """If a stored event with a fence is appended again, the ledger reports a duplicate. It does not
    report a stale fence, although the subject's last revision has changed since."""
    ledger = await place.connect()
    await ledger.append([draft("workload.a", key="one", expect=0)])
    if moved_on:
        await ledger.append([draft("workload.a", expect=1)])
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.a", key="one", expect=0)])
    assert refused.value.revision == 1
    with pytest.raises(FenceRefused):
        await ledger.append([draft("workload.a", key="other", expect=0)])


async def test_a_batch_checks_ids_before_fences(place: Place) -> None:
    """If a stored batch with fences is appended again, the ledger reports duplicates, not stale
    fences."""
    ledger = await place.connect()
    batch = [draft("workload.a", key="one", expect=0), draft("workload.b", key="two", expect=0)]
    await ledger.append(batch)
    with pytest.raises(DuplicateRefused):
        await ledger.append(batch)


async def test_an_id_is_free_again_after_the_window(lawless: LawlessPlace) -> None:
    """The ledger accepts an id again after the duplicate window. So readers of the ledger must skip
    duplicates too."""
    ledger = await lawless.connect()
    await ledger.append([draft("workload.a", key="one")])
    with pytest.raises(DuplicateRefused):
        await ledger.append([draft("workload.a", key="one")])

    async def free() -> bool:
        try:
            return await ledger.append([draft("workload.a", key="one")]) == [2]
        except DuplicateRefused:
            return False

    await until(free, f"the id to be free after {WINDOW_S} s", interval_s=0.2)


async def test_limits_are_checked_before_sending(place: Place) -> None:
    """The client refuses a batch with too many events, too large a payload or an invalid field, and
    sends nothing."""
    ledger = await place.connect()
    assert await ledger.append([draft(payload=b"x" * MAX_PAYLOAD_BYTES)]) == [1]
    with pytest.raises(PayloadTooLarge, match="1044481 bytes"):
        await ledger.append([draft(payload=b"x" * (MAX_PAYLOAD_BYTES + 1))])
    with pytest.raises(InvalidDraft, match="at most 1000"):
        await ledger.append([draft() for _ in range(1001)])
    for bad in (draft("workload.*"), draft("workload..a"), draft(key="é"), draft(expect=-1)):
        with pytest.raises(InvalidDraft):
            await ledger.append([bad])
    assert await ledger.last_revision() == 1


async def test_a_full_ledger_keeps_what_it_has(small_place: Place) -> None:
    """A full ledger refuses a batch as a whole. It accepts a smaller batch that still fits."""
    ledger = await small_place.connect()
    big = [draft(f"workload.{n}", payload=b"x" * 100_000) for n in range(12)]
    with pytest.raises(LedgerFull, match="maximum bytes exceeded"):
        await ledger.append(big)
    assert await ledger.append(big[:9]) == list(range(1, 10))
    with pytest.raises(LedgerFull):
        await ledger.append(big[9:10])
    assert await ledger.append([draft()]) == [10]


@pytest.mark.parametrize(
    ("role", "mine", "foreign"),
    [
        ("agent", (), ("inventory.n1", "allocation.n1", "placement.n1", "operator.policy")),
        ("intake", ("inventory.n1", "allocation.n1"), ("placement.n1", "operator.policy")),
        ("watcher", ("workload.u", "cluster.node.n1"), ("pending.u", "binding.n1")),
        ("operator", ("workload.u", "cluster.node.n1", "operator.policy"), ("placement.n1",)),
        ("scheduler", ("placement.n1", "pending.u"), ("binding.n1", "workload.u")),
        ("binder", ("binding.n1",), ("placement.n1", "allocation.n1")),
        ("auditor", (), ("workload.u", "inventory.n1")),
    ],
)
async def test_a_role_writes_what_it_owns(
    place: Place, role: str, mine: tuple[str, ...], foreign: tuple[str, ...]
) -> None:
    """A role may append only its own event types; a batch with any other event type is refused."""
    ledger = await place.connect(role)
    for subject in mine:
        await ledger.append([draft(subject)])
    for subject in foreign:
        with pytest.raises(NotPermitted):
            await ledger.append([draft(subject)])
        if mine:
            with pytest.raises(NotPermitted):
                await ledger.append([draft(mine[0]), draft(subject)])
    assert await ledger.last_revision() == len(mine)


async def test_a_missing_answer_is_unknown_and_the_retry_finds_the_event(place: Place) -> None:
    """If the reply to an append is lost, the client reports an unknown outcome.

    A retry then finds the event stored."""
    ledger = await place.connect(shaky=True)
    place.silence()
    with pytest.raises(OutcomeUnknown) as unknown:
        await ledger.append([draft("workload.a", key="one", expect=0)])
    assert unknown.value.subjects == ("apportion.v1.workload.a",)
    witness = await place.connect()

    async def stored() -> bool:
        return await witness.last_revision() >= 1

    await until(stored, "the event to be stored")
    await place.heal()

    async def again() -> DuplicateRefused | None:
        try:
            await ledger.append([draft("workload.a", key="one", expect=0)])
        except DuplicateRefused as refused:
            return refused
        except (OutcomeUnknown, LedgerUnavailable):
            return None  # the client has not noticed yet that it is connected again
        raise AssertionError("stored twice")

    refused = await until(again, "the retry to be answered")
    assert refused is not None
    assert refused.revision == 1


async def test_a_closed_connection_is_unavailable(place: Place) -> None:
    """An append on a closed connection fails as unavailable, and stores nothing."""
    ledger = await place.connect()
    await ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        await ledger.append([draft()])
    assert await (await place.connect()).last_revision() == 0
