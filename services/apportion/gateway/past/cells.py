"""Counts of events by type in short intervals, called cells, for the timeline.

A few thousand cells cover any ledger. Invariant: each event is in one cell; cells are in order."""

from collections import Counter
from collections.abc import Sequence

import msgspec

CELLS_MAX = 8_192


class Cell(msgspec.Struct, array_like=True):
    """A few consecutive events, counted by type; times are in ns since 1970."""

    first: int
    last: int
    from_ns: int
    to_ns: int
    counts: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Cell]).decode


class Cells:
    """The cells of a ledger, in revision order."""

    def __init__(self, data: bytes = b"") -> None:
        self.all: list[Cell] = _decode(data) if data else []

    def add(self, revision: int, ns: int, kind: str) -> None:
        """Count one event, at the newest time so far if its own time is older."""
        if self.all:
            ns = max(ns, self.all[-1].to_ns)
        self.all.append(Cell(revision, revision, ns, ns, {kind: 1}))
        if len(self.all) < CELLS_MAX:
            return
        # Merge neighbours into cells of bounded length: at most half of the cells are left.
        shortest_ns = (self.all[-1].to_ns - self.all[0].from_ns) // (CELLS_MAX // 4)
        merged = [self.all[0]]
        for cell in self.all[1:]:
            last = merged[-1]
            if cell.to_ns - last.from_ns <= shortest_ns:
                last.last, last.to_ns = cell.last, cell.to_ns
                for each, count in cell.counts.items():
                    last.counts[each] = last.counts.get(each, 0) + count
            else:
                merged.append(cell)
        self.all = merged

    def encode(self) -> bytes:
        """Encode all cells as bytes, from which the constructor restores them."""
        return _encode(self.all)


def binned(
    cells: Sequence[Cell], *, number: int, from_ns: int, to_ns: int
) -> list[tuple[int, int, Cell | None]]:
    """Return each bin's first and last nanosecond, and its events as one cell, if any."""
    width = max(1, -(-(to_ns - from_ns + 1) // number))
    counts: list[Counter[str]] = [Counter() for _ in range(number)]
    found: list[Cell | None] = [None] * number
    for cell in cells:
        if not from_ns <= cell.from_ns <= to_ns:
            continue
        place = (cell.from_ns - from_ns) // width
        counts[place].update(cell.counts)
        here = found[place]
        first = here.first if here else cell.first
        found[place] = Cell(first, cell.last, cell.from_ns, cell.to_ns, counts[place])
    edges = [min(from_ns + place * width, to_ns + 1) for place in range(number + 1)]
    bins = zip(edges, edges[1:], found, strict=False)
    return [(min(begins, to_ns), ends - 1, cell) for begins, ends, cell in bins]
