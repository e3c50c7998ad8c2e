"""Read a span of the ledger, and stop there."""

from collections.abc import Callable
from contextlib import suppress

from apportion.runtime.ledger.port import Readable, Record


class _Enough(Exception): ...


async def read_while(ledger: Readable, take: Callable[[Record], bool], *, start: int) -> None:
    """Deliver the records from `start` on, until `take` returns False. Raises LedgerError."""

    def deliver(record: Record) -> None:
        if not take(record):
            raise _Enough

    subscription = await ledger.follow(deliver, start=start)
    try:
        with suppress(_Enough):
            await subscription.join()
    finally:
        await subscription.stop()


async def read_to(
    ledger: Readable, last: int, deliver: Callable[[Record], object], *, start: int = 1
) -> None:
    """Deliver the records from `start` to `last`. Raises LedgerError."""

    def take(record: Record) -> bool:
        deliver(record)
        return record.revision < last

    if last >= max(start, 1):
        await read_while(ledger, take, start=start)
