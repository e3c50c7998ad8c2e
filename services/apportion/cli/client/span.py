"""From where to where the ledger is told: what was asked for, as revisions of this ledger.

Invariant: a time that means another day than today, or none of this ledger, is told as what it is:
nobody takes the silence of a wrong time for that of a quiet one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from apportion.cli.client.moments import when
from apportion.cli.exits import Wrong
from apportion.cli.render.output import console
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.moments import Moment, MomentError, parse_moment


class Span(NamedTuple):
    """A beginning, now if None, and an end; where that is None it is open, or if `closed` where the
    ledger ends now.
    """

    start: Moment | None
    end: Moment | None
    closed: bool

    async def revisions(self, ledger: JetStreamLedger) -> tuple[int, int | None]:
        """The first and the last revision; no last one where none was named.

        The first may be the next one to come, for a script that goes on where it was. Of times,
        standard error says which revisions they are.

        Raises:
            Wrong: the ledger has no such revisions.
            LedgerError: it cannot be read.
        """
        last = await ledger.last_revision()
        begin = last + 1 if self.start is None else await _first(ledger, self.start, last)
        end = None if self.end is None else await _last(ledger, self.end, last)
        now = datetime.now(UTC)
        said = [
            f"{word} {when(moment.time, now)}: revision {revision:,}"
            for word, moment, revision in (("from", self.start, begin), ("to", self.end, end))
            if moment is not None and moment.time is not None
        ]
        if end is not None and end < begin - 1:
            raise Wrong(f"--to is before --from, which begins at revision {begin}; exchange them")
        if said:
            console(stderr=True).print(", ".join(said), style="dim", soft_wrap=True)
        return begin, end


def span_of(start: str | None, end: str | None, *, closed: bool) -> Span:
    """The span that is asked for. Raises Wrong."""
    if end is None:
        return Span(_moment("--from", start), None, closed)
    if start is None:
        raise Wrong("--to without --from, which is now if left out; name both")
    span = Span(_moment("--from", start), _moment("--to", end), closed=True)
    before, after = (moment or Moment() for moment in span[:2])
    turned = before.revision and after.revision and after.revision < before.revision
    if turned or (before.time and after.time and after.time < before.time):
        raise Wrong(f"--to {end} is before --from {start}; exchange them")
    return span


def _moment(option: str, text: str | None) -> Moment | None:
    try:
        return None if text is None else parse_moment(text, datetime.now(UTC))
    except MomentError as error:
        raise Wrong(f"{option}: {error}; {error.fix}") from None


async def _first(ledger: JetStreamLedger, start: Moment, last: int) -> int:
    """Of a time, the first event that was stored after it."""
    if start.time is not None:
        return await stream.newest_stored_by(ledger.wire, start.time) + 1
    begin = start.revision or 1
    if begin > last + 1:
        raise Wrong(
            f"--from is revision {begin}, and the ledger ends at {last}; leave it out for what "
            "comes from now on"
        )
    return begin


async def _last(ledger: JetStreamLedger, end: Moment, last: int) -> int:
    """Of a time, the last event that was stored by then."""
    if end.time is None:
        found = end.revision or last
        if found > last:
            raise Wrong(f"--to is revision {found}, and the ledger ends at {last}; name one of it")
        return found
    found = await stream.newest_stored_by(ledger.wire, end.time)
    if not found:
        asked = when(end.time, datetime.now(UTC))
        raise Wrong(f"--to is {asked}, before the ledger began: it has nothing of that time")
    return found
