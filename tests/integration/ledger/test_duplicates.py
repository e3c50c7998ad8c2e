"""The ledger stores an event id only once, and recognises a repeated append as a duplicate."""

import pytest

from apportion.runtime.ledger.port import DuplicateRefused, FenceRefused
from tests.support.nats import Bus, draft


async def test_a_repeated_draft_is_refused_with_the_place_of_the_first(bus: Bus) -> None:
    """If a writer appends an event again, the ledger refuses it and returns the first copy's
    revision. The writer can continue as after success."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.z")])
    await ledger.append([draft("workload.a", key="pod-1")])
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.a", key="pod-1")])
    assert (refused.value.ids, refused.value.revision) == (("pod-1",), 2)
    assert await ledger.last_revision() == 2


async def test_one_duplicate_refuses_the_whole_batch(bus: Bus) -> None:
    """A batch with one duplicate is refused as a whole, so a gang is never placed in part."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.a", key="pod-1")])
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.b", key="pod-2"), draft("workload.c", key="pod-1")])
    assert refused.value.ids == ("pod-2", "pod-1")
    assert await ledger.last_revision() == 1


async def test_an_id_twice_in_one_batch_is_refused_and_named(bus: Bus) -> None:
    """The ledger refuses a batch with one id twice, and the error names the id."""
    ledger = await bus.connect()
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft(key="x"), draft(key="y"), draft(key="x")])
    assert refused.value.ids == ("x",)
    assert await ledger.last_revision() == 0


@pytest.mark.parametrize("moved_on", [False, True])
async def test_a_repeated_fenced_draft_is_known_as_stored_and_not_called_stale(
    bus: Bus, *, moved_on: bool
) -> None:
    """If a writer retries after a lost acknowledgement, the ledger reports its event as a
    duplicate, not as stale."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.a")])
    await ledger.append([draft("workload.a", key="pod-1", expect=1)])
    if moved_on:
        await ledger.append([draft("workload.a", key="pod-2", expect=2)])
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.a", key="pod-1", expect=1)])
    assert refused.value.revision == 2


async def test_a_new_fenced_draft_behind_a_foreign_one_is_stale(bus: Bus) -> None:
    """The ledger refuses a new event as stale if the event's expected revision is out of date. An
    event is a duplicate only if its id is stored."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.a", key="pod-1", expect=0)])
    with pytest.raises(FenceRefused):
        await ledger.append([draft("workload.a", key="pod-2", expect=0)])


async def test_a_duplicate_is_still_known_after_the_server_was_killed(bus: Bus) -> None:
    """A server that was killed and restarted still refuses an event whose id it has stored."""
    ledger = await bus.connect()
    await ledger.append([draft("workload.a", key="pod-1")])
    await bus.crash()
    await bus.restart()
    with pytest.raises(DuplicateRefused) as refused:
        await ledger.append([draft("workload.b", key="pod-1")])
    assert refused.value.revision == 1
