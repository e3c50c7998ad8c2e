"""`apportion ledger`: make the stream, check, enlarge, copy and trim it, say how it is read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import REFUSED, NotFound
from apportion.cli.render.output import console, plain, print_json
from apportion.cli.verbs.ledger.ledger_formats import enable, set_aside
from apportion.cli.verbs.ledger.ledger_trim import trim
from apportion.core.doctor.found import size
from apportion.core.explain.words import many
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.stream import StreamInfo
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.archive import ArchiveError, ArchiveWriter
from apportion.runtime.ledger.port import LedgerDrifted, Record
from apportion.runtime.process.reach import Reach

Look = Callable[[JetStreamLedger], Awaitable[StreamInfo]]
"""What is done to the stream, or asked of it."""


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `apportion verify --json` prints."""

    ok: bool
    first_revision: int = 0
    last_revision: int = 0
    bytes: int = 0
    max_bytes: int = -1
    replicas: int = 0
    error: str = ""


class Archived(msgspec.Struct, frozen=True):
    """What `apportion ledger archive --json` prints."""

    file: str
    revisions: int


class _Done(Exception):
    """All that the ledger held when the archive was begun has been copied."""


@click.group(epilog="Example:  apportion ledger check")
def command() -> None:
    """Make, check, resize, archive or trim the ledger's stream, and say how it is read.

    Exit codes: 0 as it must be, or done; 1 a setting is not, or nothing was archived or dropped;
    3 the ledger cannot be reached, or does not let us.
    """


command.add_command(trim)
command.add_command(enable)
command.add_command(set_aside)


@command.command(epilog="Example:  apportion ledger create --replicas 3")
@click.option("--replicas", type=click.IntRange(1, 5), default=1, show_default=True,
              help="Servers that hold the ledger; 3 in production.")  # fmt: skip
@click.option("--max-bytes", type=click.IntRange(min=-1), default=-1, show_default=True,
              help="Most bytes that it may take; -1 is what the disk holds.")  # fmt: skip
@asks_ledger
def create(*, where: Where, as_json: bool, replicas: int, max_bytes: int) -> None:
    """Make the stream, or check the one that is there. Needs the user `bootstrap`."""

    async def made(ledger: JetStreamLedger) -> StreamInfo:
        return await jetstream.create_stream(ledger, replicas=replicas, max_bytes=max_bytes)

    _tell(_outcome(where, "bootstrap", made), as_json=as_json)


@command.command(epilog="Example:  apportion ledger resize --max-bytes 5000000000")
@click.option("--max-bytes", type=click.IntRange(min=-1), required=True,
              help="Most bytes that it may take; -1 is what the disk holds.")  # fmt: skip
@asks_ledger
def resize(*, where: Where, as_json: bool, max_bytes: int) -> None:
    """Give a full ledger more room; everything goes on at once. Needs the user `bootstrap`."""

    async def resized(ledger: JetStreamLedger) -> StreamInfo:
        return await stream.resize(ledger.wire, max_bytes=max_bytes)

    _tell(_outcome(where, "bootstrap", resized), as_json=as_json)


@command.command(epilog="Example:  apportion ledger check --json")
@asks_ledger
def check(*, where: Where, as_json: bool) -> None:
    """Check every setting that the ledger's promises rest on."""
    _tell(_outcome(where, "operator", jetstream.check_stream), as_json=as_json)


@command.command(epilog="Example:  apportion ledger archive ledger.jsonl")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@asks_ledger
def archive(*, where: Where, as_json: bool, file: Path) -> None:
    """Copy every event that there is into FILE, which `apportion verify --archive` checks.

    Nothing of the ledger is changed, and an archive may be as large as the ledger.
    """
    try:
        written = run(_archive(where.reach(), file))
    except (ArchiveError, OSError) as error:
        raise NotFound(f"no archive written: {error}") from None
    if as_json:
        print_json(written)
    else:
        console().print(f"{written.revisions} events in", plain(written.file), soft_wrap=True)


async def _archive(reach: Reach, file: Path) -> Archived:
    async with open_ledger(reach) as ledger:
        info = await jetstream.check_stream(ledger)
        last = info.state.last_seq
        with ArchiveWriter(file, stream=STREAM, created=info.created) as writer:

            def deliver(record: Record) -> None:
                writer.add(record)
                if record.revision >= last:
                    raise _Done

            if info.state.messages:
                subscription = await ledger.follow(deliver, start=info.state.first_seq)
                with contextlib.suppress(_Done):
                    await subscription.join()
        return Archived(str(file), writer.revisions)


def _outcome(where: Where, role: str, look: Look) -> StreamInfo | LedgerDrifted:
    return run(_looked(where.reach(role), look))


async def _looked(reach: Reach, look: Look) -> StreamInfo | LedgerDrifted:
    ledger = await jetstream.connect(reach, name="apportion cli")
    try:
        return await look(ledger)
    except LedgerDrifted as drifted:
        return drifted
    finally:
        await ledger.close()


def _most(max_bytes: int) -> str:
    return size(max_bytes) if max_bytes >= 0 else "what the disk holds"


def words_of(checked: Checked) -> str:
    """What of a ledger that is as it must be; amounts are in the units that `doctor` has."""
    return (
        f"the ledger is as it must be: revisions {checked.first_revision} to "
        f"{checked.last_revision}, which take {size(checked.bytes)} of "
        f"{_most(checked.max_bytes)}, {many(checked.replicas, 'replica')}"
    )


def _tell(outcome: StreamInfo | LedgerDrifted, *, as_json: bool) -> None:
    if isinstance(outcome, LedgerDrifted):
        checked = Checked(ok=False, error=str(outcome))
    else:
        state = outcome.state
        checked = Checked(
            ok=True, first_revision=state.first_seq, last_revision=state.last_seq,
            bytes=state.bytes, max_bytes=outcome.config.get("max_bytes", -1),
            replicas=outcome.config.get("num_replicas", 0),
        )  # fmt: skip
    if as_json:
        print_json(checked)
    elif checked.ok:
        console().print(words_of(checked))
    else:
        console(stderr=True).print(plain(checked.error), style="red", soft_wrap=True)
    if not checked.ok:
        sys.exit(REFUSED)
