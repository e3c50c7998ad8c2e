"""Contract tests of reading and writing a ledger whose oldest records were dropped."""

import pytest

from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import FenceRefused, LedgerHole, Record
from tests.contracts.ledger.places import Place
from tests.support.nats import draft, ignore


async def test_readers_must_start_at_the_beginning(place: Place) -> None:
    """A reader that starts before the first remaining record gets LedgerHole, even if it reads only
    subjects that lost no record."""
    ledger = await place.connect()
    assert await ledger.first_revision() == 1
    await ledger.append([draft(f"workload.{number}") for number in range(5)])
    await place.drop(3)
    assert (await ledger.first_revision(), await ledger.last_revision()) == (4, 5)
    seen: list[Record] = []
    following = await ledger.follow(seen.append, start=4)
    await following.caught_up()
    assert [record.revision for record in seen] == [4, 5]
    for subjects in (["apportion.v1.>"], ["apportion.v1.workload.4"]):
        with pytest.raises(LedgerHole, match="oldest events were dropped"):
            await (await ledger.follow(ignore, subjects=subjects)).join()


async def test_a_fence_on_a_dropped_record_is_refused(place: Place) -> None:
    """The ledger refuses a write whose fence is the revision of a dropped record.

    Once a writer has folded all dropped records, it expects an empty subject and succeeds."""
    ledger = await place.connect()
    (placed, *_) = await ledger.append([draft("workload.a"), draft("workload.b")])
    await place.drop(2)
    assert await ledger.last_on_subject("apportion.v1.workload.a") == 0
    fences = Fences()
    expect = fences.expected(placed, folded=2)
    with pytest.raises(FenceRefused):
        await ledger.append([draft("workload.a", expect=expect), draft("workload.c")])
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft("workload.a", expect=expect)])
    assert refused.value.found == 0
    await fences.refused(refused.value, ledger)
    assert fences.expected(placed, folded=1) == placed, "it has not folded all that was dropped"
    expect = fences.expected(placed, folded=2)
    (revision,) = await ledger.append([draft("workload.a", expect=expect)])
    assert revision == 3
    with pytest.raises(FenceRefused):
        await ledger.append([draft("workload.a", expect=expect)])


async def test_a_writer_learns_a_forgotten_revision_from_the_server(place: Place) -> None:
    """If a writer expects the wrong last revision of a subject, the refusal reports the right one.

    The writer uses the reported revision only after it has folded the record with that revision."""
    ledger = await place.connect()
    (placed,) = await ledger.append([draft("workload.n1")])
    fences, subject = Fences(), "apportion.v1.workload.n1"
    assert fences.expected(0, folded=placed, subject=subject) == 0
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft("workload.n1", expect=0)])
    await fences.refused(refused.value, ledger)
    assert fences.expected(0, folded=placed - 1, subject=subject) == 0
    expect = fences.expected(0, folded=placed, subject=subject)
    assert expect == placed
    await ledger.append([draft("workload.n1", expect=expect)])
