"""The line of time under everything: how much happened when, and the marks that people look for.

Invariant: the bins cover the span without a gap, and their number is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from apportion.core.explain.past_answers import Bin, MarkRow, TimelineAnswer
from apportion.gateway.api.moments import Moments
from apportion.gateway.api.query import WAITING, only, whole
from apportion.gateway.past.cells import Cell, binned
from apportion.gateway.past.past import Past

BINS_DEFAULT = 200
BINS_MAX = 2_000
MARKS_MAX = 500


async def timeline(past: Past, moments: Moments, query: Mapping[str, str]) -> TimelineAnswer:
    """`?bins=N[&from=&to=]`: the span, cut into bins, and its newest marks.

    Raises RequestRefused, LedgerError.
    """
    only(query, (*WAITING, "bins", "from", "to"))
    text = query.get("bins")
    number = whole("bins", text, least=1, most=BINS_MAX) if text is not None else BINS_DEFAULT
    revision = await past.caught_up()
    cells = past.indexer.cells.all
    first = await moments.revision("from", query["from"]) if "from" in query else 0
    last = await moments.revision("to", query["to"]) if "to" in query else revision
    shown = [cell for cell in cells if cell.last >= first and cell.first <= last]
    bins = _bins(shown, number) if shown else ()
    return TimelineAnswer(
        revision=revision,
        first_revision=cells[0].first if cells else 0,
        first_time=rfc3339_ns(cells[0].from_ns) if cells else "",
        last_time=rfc3339_ns(cells[-1].to_ns) if cells else "",
        bins=bins,
        marks=tuple(
            MarkRow(*mark) for mark in past.index.marks(since=first, upto=last, limit=MARKS_MAX)
        ),
    )


def _bins(cells: list[Cell], number: int) -> tuple[Bin, ...]:
    spans = binned(cells, number=number, from_ns=cells[0].from_ns, to_ns=cells[-1].to_ns)
    return tuple(
        Bin(
            from_time=rfc3339_ns(begins),
            to_time=rfc3339_ns(ends),
            first_revision=cell.first if cell else 0,
            last_revision=cell.last if cell else 0,
            counts=dict(sorted(cell.counts.items())) if cell else {},
        )
        for begins, ends, cell in spans
    )


def rfc3339_ns(ns: int) -> str:
    """A time in ns since 1970 as events write it: UTC, in microseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000)
    return time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
