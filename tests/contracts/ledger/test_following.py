"""Contract tests of reading the ledger: a reader gets its subjects' records once and in order."""

import asyncio
from collections.abc import Sequence

import pytest

from apportion.runtime.ledger.port import ALL_SUBJECTS, LedgerHole, Record, Subscription
from tests.contracts.ledger.places import LawlessPlace, Place
from tests.support.nats import draft, ignore
from tests.support.polling import until


async def _at(following: Subscription, revision: int) -> None:
    async def there() -> bool:
        return following.position >= revision

    await until(there, f"the reader to be at revision {revision}")


async def test_history_first_then_live_with_the_bytes_that_were_appended(place: Place) -> None:
    """A reader gets all stored records and then new ones, with exactly the appended bytes.

    `caught_up` returns once the stored records are delivered."""
    ledger = await place.connect()
    await ledger.append([draft(f"workload.{n}", payload=str(n).encode()) for n in range(300)])
    seen: list[Record] = []
    following = await ledger.follow(seen.append)
    await following.caught_up()
    assert (following.position, following.lag) == (300, 0)
    await ledger.append([draft(f"workload.{n}", payload=str(n).encode()) for n in range(300, 310)])
    await _at(following, 310)
    assert [record.revision for record in seen] == list(range(1, 311))
    assert [record.payload for record in seen] == [str(n).encode() for n in range(310)]
    assert seen[5].subject == "apportion.v1.workload.5"


async def test_an_empty_ledger_is_caught_up_at_once(place: Place) -> None:
    """`caught_up` returns at once for a reader of an empty ledger."""
    following = await (await place.connect()).follow(ignore)
    async with asyncio.timeout(5):
        await following.caught_up()
    assert following.position == 0


async def test_a_reader_starts_where_it_says(place: Place) -> None:
    """A reader can start at any revision, for example at the one after a snapshot."""
    ledger = await place.connect()
    await ledger.append([draft() for _ in range(10)])
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision), start=8)
    await following.caught_up()
    assert seen == [8, 9, 10]
    beyond = await ledger.follow(ignore, start=11)
    await beyond.caught_up()
    assert beyond.position == 10


@pytest.mark.parametrize("subjects", [(ALL_SUBJECTS,), ("apportion.v1.workload.>",)])
async def test_a_reader_ahead_of_the_ledger_gets_a_hole(
    place: Place, subjects: Sequence[str]
) -> None:
    """A reader that starts beyond the ledger's end gets the error LedgerHole.

    Such a reader knows records that the ledger has since lost, for example because the reader
    started from a snapshot."""
    ledger = await place.connect()
    await ledger.append([draft() for _ in range(10)])
    with pytest.raises(LedgerHole, match="moved back"):
        await ledger.follow(ignore, start=12, subjects=subjects)


@pytest.mark.parametrize(
    "subjects",
    [("apportion.v1.cluster.>",), ("apportion.v1.cluster.node.*", "apportion.v1.cluster.queue.*")],
)
async def test_a_reader_of_some_subjects(place: Place, subjects: Sequence[str]) -> None:
    """A reader of some subjects gets only their records.

    Revisions that belong to other subjects do not count as lost records."""
    ledger = await place.connect()
    for number in range(5):
        await ledger.append([draft(f"workload.{number}"), draft(f"cluster.node.n{number}")])
    await ledger.append([draft("workload.last")])
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision), subjects=subjects)
    await following.caught_up()
    await ledger.append([draft("workload.x"), draft("cluster.queue.q")])
    await _at(following, 13)
    assert seen == [2, 4, 6, 8, 10, 13]


async def test_a_reader_resumes_after_a_broken_connection(place: Place) -> None:
    """A reader resumes after a broken connection, and gets no record twice and misses none."""
    writer, reader = await place.connect(), await place.connect(shaky=True)
    seen: list[int] = []
    following = await reader.follow(lambda record: seen.append(record.revision))
    for _ in range(3):
        await place.heal()
        await writer.append([draft() for _ in range(50)])
    await _at(following, 150)
    assert seen == list(range(1, 151))


async def test_an_error_of_the_reader_ends_its_following(place: Place) -> None:
    """If a reader's callback raises an error, the reader stops, and `join` raises that error."""
    ledger = await place.connect()
    await ledger.append([draft() for _ in range(5)])
    seen: list[int] = []

    def deliver(record: Record) -> None:
        if record.revision == 3:
            raise ValueError("unknown type at revision 3")
        seen.append(record.revision)

    following = await ledger.follow(deliver)
    with pytest.raises(ValueError, match="revision 3"):
        await following.join()
    with pytest.raises(ValueError, match="revision 3"):
        await following.caught_up()
    assert (seen, following.position) == ([1, 2], 2)


async def test_nothing_is_delivered_after_stop(place: Place) -> None:
    """After `stop` the ledger delivers nothing more, and `join` returns."""
    ledger = await place.connect()
    seen: list[Record] = []
    following = await ledger.follow(seen.append)
    await following.stop()
    await ledger.append([draft()])
    await (await ledger.follow(ignore)).caught_up()
    assert seen == []
    await following.join()


async def test_a_missing_record_is_a_hole(lawless: LawlessPlace) -> None:
    """A reader of the whole ledger stops before a missing record. Its LedgerHole names that
    revision."""
    ledger = await lawless.connect()
    await ledger.append([draft() for _ in range(5)])
    await lawless.lose(3)
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision))
    with pytest.raises(LedgerHole) as hole:
        await following.join()
    assert (seen, hole.value.expected, hole.value.found) == ([1, 2], 3, 4)
