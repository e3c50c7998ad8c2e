"""Write to the ledger from the command line, as the operator.

Invariant: an event keeps its id through every retry, so no event is written twice."""

import asyncio
import getpass
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from uuid import uuid4

import click

from apportion.cli.client.connection import Command
from apportion.cli.exits import NotFound, Outdated, Unreachable
from apportion.cli.render.output import warn
from apportion.core.ledger.rules import Superseded, missing
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.batching import Appended, GroupCommit
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    FenceRefused,
    InvalidDraft,
    LedgerError,
    PayloadTooLarge,
    Record,
)
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reading import following
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.logs import configure_logs
from apportion.runtime.process.reach import Reach
from apportion.runtime.process.waiting import first_of
from apportion_schemas import CATALOGUE, InvalidEvent, UnknownEvent
from apportion_schemas.quantities import NAME_MAX, Payload

T = TypeVar("T")
TOGETHER_S: Final = 5.0
OF_A_LOG: Final = frozenset(("event", "level", "logger", "time", "service"))
BEHIND_S = 5  # seconds that the gateway may take to catch up; short, because a writer waits for it
ROLES = ("operator", "watcher")  # whose events users write
# their events that are legal only after `FormatEnabled`
NEW = [row for row in CATALOGUE if row.version > row.born and row.writer in ROLES]

by_whom: Callable[[Command], Command] = click.option(
    "--by", default="", metavar="NAME", help="Name to record as the author.  [default: user@host]"
)


def person(by: str) -> str:
    """Return the name to record as the author: `by`, or by default `user@host`."""
    return (by or f"{user()}@{socket.gethostname()}")[:NAME_MAX]


def user() -> str:
    """Return the user name of this process, or `unknown`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in an event loop. Raises NotFound, Unreachable or Outdated for ledger errors."""
    try:
        return asyncio.run(work)
    except (FenceRefused, DuplicateRefused, InvalidDraft, PayloadTooLarge, InvalidEvent) as error:
        raise NotFound(str(error)) from None
    except UnknownEvent as error:
        raise Outdated(str(error)) from None
    except Superseded as error:
        raise Unreachable(f"interrupted while reading: {error}; run it again") from None
    except LedgerError as error:
        raise Unreachable(str(error)) from None


async def to_its_end(step: Coroutine[Any, Any, T]) -> T:
    """Run `step` to its end, however often it is cancelled; the cancellation takes effect then."""
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


@asynccontextmanager
async def open_ledger(reach: Reach, *, checked: bool = True) -> AsyncIterator[JetStreamLedger]:
    """Open the ledger until the block ends; logs go to standard error. Raises LedgerError.

    Checks the stream's settings if `checked`."""
    say_troubles()
    async with await jetstream.connect(reach, name="apportion cli") as ledger:
        if checked:
            await jetstream.check_stream(ledger)
        yield ledger


def with_ledger(reach: Reach, work: Callable[[JetStreamLedger], Coroutine[Any, Any, T]]) -> T:
    """Open the ledger, run `work` with it, and close it. Raises the errors of `run`."""

    async def opened() -> T:
        async with open_ledger(reach) as ledger:
            return await work(ledger)

    return run(opened())


async def follow_until(
    done: Awaitable[Any],
    ledger: JetStreamLedger,
    deliver: Callable[[Record], None],
    *,
    start: int,
    subjects: Sequence[str],
    timeout_s: float | None = None,
) -> None:
    """Deliver records until `done` ends or a timeout passes. Raises LedgerError."""
    async with following(ledger, deliver, start=start, subjects=subjects) as subscription:
        await first_of(subscription.join(), done, timeout_s=timeout_s)


async def by_now(reach: Reach) -> dict[str, int]:
    """Return the query parameters that make the gateway answer as of the ledger's end.

    Verbs whose writes depend on the answer need this, because a gateway may be stale. Raises
    LedgerError."""
    async with open_ledger(reach) as ledger:
        return await by_end(ledger)


async def by_end(ledger: JetStreamLedger) -> dict[str, int]:
    """Return the query parameters of `by_now` for an open ledger. Raises LedgerError."""
    return {"at_least": await ledger.last_revision(), "wait_s": BEHIND_S}


@asynccontextmanager
async def appending(
    ledger: JetStreamLedger, by: str = ""
) -> AsyncIterator[tuple[GroupCommit, Publisher]]:
    """Yield a group commit, and a publisher that appends through it. Raises LedgerError.

    Raises NotFound if this build writes formats that the ledger has not enabled."""
    if NEW:
        rules, revision = await stream.read_rules(ledger.wire), await ledger.last_revision()
        wanted = [each for role in ROLES for each in missing(rules, role, revision + 1)]
        if wanted:
            raise NotFound(
                f"this build writes {', '.join(wanted)}, which the ledger has not enabled; run "
                "`apportion ledger enable`, or use the previous build"
            )
    async with GroupCommit(ledger) as commit:
        yield commit, Publisher(f"cli/{person(by)}", SystemClock(), commit.append)


async def publish(publisher: Publisher, data: Payload, *, basis: int) -> int:
    """Append one event and return its revision. Raises LedgerError, InvalidEvent."""
    event_id = f"{type(data).__name__}/{uuid4()}"
    return (await publisher.publish(data, event_id=event_id, basis=basis)).revision or 0


async def write_all(reach: Reach, data: Sequence[Payload], *, basis: int) -> list[int | None]:
    """Append all events concurrently. Return their revisions in order. Raises LedgerError."""
    async with open_ledger(reach) as ledger, GroupCommit(ledger) as commit:
        publisher = Publisher(f"cli/{person('')}", SystemClock(), commit.append)
        appends = [
            publisher.publish(each, event_id=f"{type(each).__name__}/{uuid4()}", basis=basis)
            for each in data
        ]
        return [each.revision for each in await asyncio.gather(*appends)]


async def write(reach: Reach, data: Payload, *, basis: int, event_id: str = "") -> Appended:
    """Append one event. Raises LedgerError, InvalidEvent, NotFound."""
    async with open_ledger(reach) as ledger, appending(ledger) as (_, publisher):
        event_id = event_id or f"{type(data).__name__}/{uuid4()}"
        return await publisher.publish(data, event_id=event_id, basis=basis)


class _Said(io.StringIO):
    """A log stream that prints JSON lines as sentences, without repeats within `TOGETHER_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._last, self._again_s = "", 0.0

    def write(self, line: str, /) -> int:
        event: dict[str, Any] = json.loads(line)
        about = ", ".join(f"{name} {said}" for name, said in event.items() if name not in OF_A_LOG)
        text = f"{event['event']}: {about}" if about else str(event["event"])
        if text != self._last or time.monotonic() > self._again_s:
            warn(text)
        self._last, self._again_s = text, time.monotonic() + TOGETHER_S
        return len(line)


def say_troubles() -> None:
    """Print this process's warnings and errors from the log on standard error."""
    configure_logs(service="cli", level="warning", form="json", stream=_Said())
