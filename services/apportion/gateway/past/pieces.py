"""The past in pieces, for those who read along from far back: each piece is read once for all.

Invariants: however many read, one reads the ledger at a time; what is kept is bounded in bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from apportion.runtime.ledger.port import Record

PIECE_EVENTS = 500
KEPT_BYTES = 16 << 20


class Records(Protocol):
    """What there is to read, as the chronicle has it."""

    async def span(self) -> tuple[int, int]:
        """The first and the last revision that can be read."""

    async def read(self, deliver: Callable[[Record], None], *, after: int, upto: int) -> None:
        """Deliver every record behind `after` up to `upto`."""


class Pieces:
    """The pieces that were read last, as far as nothing can be added to them."""

    def __init__(self, records: Records, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._records = records
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[int, list[Record]] = OrderedDict()
        self._bytes = 0
        self._turn = asyncio.Lock()

    async def behind(self, revision: int) -> list[Record]:
        """Some records behind a revision, the next one first; none where the ledger ends.

        Where nobody knows what is next, the first one that is known. Raises LedgerError,
        ArchiveError, OSError.
        """
        async with self._turn:
            first, last = await self._records.span()
            revision = max(revision, first - 1)
            number = revision // PIECE_EVENTS
            piece = self._kept.get(number)
            if piece is None:
                piece = []
                begin, end = number * PIECE_EVENTS, (number + 1) * PIECE_EVENTS
                await self._records.read(
                    piece.append, after=max(begin, first - 1), upto=min(last, end)
                )
                if end <= last:
                    self._keep(number, piece)
            return [record for record in piece if record.revision > revision]

    def _keep(self, number: int, piece: list[Record]) -> None:
        self._kept[number] = piece
        self._bytes += _size(piece)
        while self._bytes > self._kept_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(piece: list[Record]) -> int:
    return sum(len(record.payload) for record in piece)
