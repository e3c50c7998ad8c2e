"""Reading a piece of the ledger's past: what stands behind a revision, up to so many records."""

from __future__ import annotations

from typing import NamedTuple

from apportion.runtime.ledger.port import Readable, Record, Subscription


class Dated(NamedTuple):
    """A record, and when the server stored it, in ns since 1970; 0 where nobody knows."""

    record: Record
    stored_ns: int


class _Enough(Exception):
    """As many records as were asked for have come."""


async def history(ledger: Readable, after: int, limit: int) -> list[Dated]:
    """Up to `limit` records behind `after`, fewer where the ledger ends. Raises LedgerError."""
    records: list[Dated] = []
    subscription: Subscription | None = None

    def take(record: Record) -> None:
        if len(records) == limit:
            raise _Enough
        records.append(Dated(record, subscription.stored_ns if subscription else 0))

    try:
        subscription = await ledger.follow(take, start=after + 1)
        try:
            await subscription.caught_up()
        finally:
            await subscription.stop()
    except _Enough:
        pass
    found = records.copy()
    records.clear()  # the ledger keeps its followers, and with them what they deliver to
    return found
