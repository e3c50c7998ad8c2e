"""A fence is the revision that a writer expects as the newest one on an event's subject.

The ledger refuses the event if the subject's newest event has another revision."""

import pytest

from apportion.runtime.ledger.port import Draft, FenceRefused, InvalidDraft
from tests.support.nats import Bus, draft


async def test_a_stale_writer_is_refused_and_told_where_the_subject_stands(bus: Bus) -> None:
    """A stale writer's error names the subject, the expected revision, and the newest revision."""
    ledger = await bus.connect()
    assert await ledger.append([draft("workload.a", expect=0)]) == [1]
    assert await ledger.append([draft("workload.a", expect=1)]) == [2]
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft("workload.a", expect=1)])
    assert (refused.value.subject, refused.value.expected, refused.value.found) == (
        "apportion.v1.workload.a",
        1,
        2,
    )
    assert await ledger.last_revision() == 2


async def test_one_stale_fence_refuses_the_whole_batch_and_is_the_one_named(bus: Bus) -> None:
    """If one of three events in a batch expects an outdated revision, the ledger refuses the whole
    batch. The error names the subject of that event."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.b")])
    batch = [draft(f"workload.{name}", expect=0) for name in ("a", "b", "c")]
    with pytest.raises(FenceRefused) as refused:
        await ledger.append(batch)
    assert refused.value.subject == "apportion.v1.workload.b"
    assert refused.value.found == 1
    assert await ledger.last_revision() == 1


async def test_a_fence_on_a_subject_that_was_never_written_is_refused(bus: Bus) -> None:
    """The ledger refuses an event that expects revision 7 on an empty subject. The error has 0 as
    the subject's newest revision."""
    ledger = await bus.connect()
    fenced = [draft("workload.a", expect=0), draft("workload.b", expect=7)]
    with pytest.raises(FenceRefused) as refused:
        await ledger.append(fenced)
    assert (refused.value.subject, refused.value.found) == ("apportion.v1.workload.b", 0)


async def test_several_drafts_of_a_subject_share_the_fence_of_the_first(bus: Bus) -> None:
    """Several events of a batch may expect the same revision of one subject. The ledger checks only
    the first event's fence, and stores all of the events."""
    ledger = await bus.connect()
    batch = [draft("workload.a", expect=0), draft("workload.a", expect=0), draft("workload.a")]
    assert await ledger.append(batch) == [1, 2, 3]


@pytest.mark.parametrize("first", [None, 3])
async def test_a_later_fence_that_the_first_draft_lacks_is_refused_unsent(
    bus: Bus, first: int | None
) -> None:
    """The client refuses a batch if a later event on a subject has a fence that the first one
    lacks."""
    ledger = await bus.connect()
    batch = [draft("workload.a", expect=first), draft("workload.a", expect=0)]
    with pytest.raises(InvalidDraft, match="set expect only on the first draft"):
        await ledger.append(batch)
    assert await ledger.last_revision() == 0


async def test_two_writers_with_the_same_basis_cannot_both_win(bus: Bus) -> None:
    """If two schedulers decide about one node on the basis of the same revision, exactly one
    decision is stored."""
    writers = [await bus.connect("scheduler") for _ in range(2)]
    outcomes = []
    for number, writer in enumerate(writers):
        offer = Draft("apportion.v1.placement.n1", f"pod-{number}", b"{}", 0)
        try:
            outcomes.append(await writer.append([offer]))
        except FenceRefused as refused:
            outcomes.append([-(refused.found or 0)])
    assert sorted(outcomes) == [[-1], [1]]
