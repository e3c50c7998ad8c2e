"""Read the ledger for a while, or up to a revision, and stop there."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from apportion.runtime.ledger.port import ALL_SUBJECTS, Readable, Record, Subscription


@asynccontextmanager
async def following(
    ledger: Readable,
    deliver: Callable[[Record], None],
    *,
    start: int = 1,
    subjects: Sequence[str] = (ALL_SUBJECTS,),
) -> AsyncIterator[Subscription]:
    """Deliver records from `start` on until the block ends. Raises LedgerError."""
    subscription = await ledger.follow(deliver, start=start, subjects=subjects)
    try:
        yield subscription
    finally:
        await subscription.stop()


class _Enough(Exception): ...


async def read_while(ledger: Readable, take: Callable[[Record], bool], *, start: int) -> None:
    """Deliver the records from `start` on, until `take` returns False. Raises LedgerError."""

    def deliver(record: Record) -> None:
        if not take(record):
            raise _Enough

    async with following(ledger, deliver, start=start) as subscription:
        with suppress(_Enough):
            await subscription.join()


async def read_to(
    ledger: Readable, last: int, deliver: Callable[[Record], object], *, start: int = 1
) -> None:
    """Deliver the records from `start` to `last`. Raises LedgerError."""

    def take(record: Record) -> bool:
        deliver(record)
        return record.revision < last

    if last >= max(start, 1):
        await read_while(ledger, take, start=start)
