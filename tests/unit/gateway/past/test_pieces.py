"""Tests of how the gateway reads the ledger in chunks. Concurrent readers share the chunks, and the
gateway caches only a limited number of bytes."""

import asyncio
from collections.abc import Callable

from apportion.gateway.past_process import PIECE_EVENTS, Pieces
from apportion.runtime.ledger.port import Record


class Ledger:
    """A fake ledger with the revisions `first` to `last`. It counts how often it is read."""

    def __init__(self, last: int, *, first: int = 1, size: int = 10) -> None:
        self.first, self.last, self.size = first, last, size
        self.reads = 0

    async def span(self) -> tuple[int, int]:
        """Return the first and the last revision."""
        return self.first, self.last

    async def read(self, deliver: Callable[[Record], None], *, after: int, upto: int) -> None:
        """Count the read, and deliver the records from revision `after` + 1 to `upto`."""
        self.reads += 1
        await asyncio.sleep(0)
        for revision in range(max(after + 1, self.first), upto + 1):
            deliver(Record(revision, "s", b"x" * self.size))


async def walk(pieces: Pieces, behind: int = 0) -> list[int]:
    """Read all chunks after the revision `behind`, and return the revisions of their records."""
    found: list[int] = []
    while records := await pieces.behind(behind):
        found += [record.revision for record in records]
        behind = found[-1]
    return found


async def test_many_who_read_from_the_beginning_cost_as_much_as_one() -> None:
    """Concurrent readers share each complete chunk. The last chunk still grows, so each reader
    reads it separately."""
    ledger = Ledger(3 * PIECE_EVENTS + 7)
    pieces = Pieces(ledger)
    walks = await asyncio.gather(*(walk(pieces) for _ in range(20)))
    assert all(found == list(range(1, ledger.last + 1)) for found in walks)
    assert ledger.reads <= 3 + 2 * 20  # each complete chunk once, and the end for each reader


async def test_what_the_ledger_has_dropped_is_passed_over() -> None:
    """If the ledger has dropped its oldest records, a reader starts at the first one that is
    left."""
    ledger = Ledger(PIECE_EVENTS * 3, first=PIECE_EVENTS + 20)
    assert await walk(Pieces(ledger)) == list(range(ledger.first, ledger.last + 1))


async def test_memory_is_bounded() -> None:
    """The gateway caches chunks up to a total size in bytes. It drops the oldest chunk first."""
    ledger = Ledger(PIECE_EVENTS * 4)
    pieces = Pieces(ledger, kept_bytes=2 * PIECE_EVENTS * ledger.size)
    await walk(pieces)
    assert list(pieces._kept) == [2, 3]
    assert await walk(pieces, ledger.last) == []
