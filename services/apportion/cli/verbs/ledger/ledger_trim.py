"""`apportion ledger trim`: drop the ledger's beginning, which an archive keeps.

Invariant: what is dropped was read in the archive a moment before, and what every service needs to
begin is kept; see `runtime.jetstream.retention`.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import NotFound
from apportion.cli.render.output import console, plain, print_json
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.retention import CannotDrop, Droppable, droppable
from apportion.runtime.jetstream.snapshots import Beginning, Snapshots
from apportion.runtime.ledger.archive import ArchiveError
from apportion.runtime.process.reach import Reach

END = 1 << 62
DAY_S = 86_400.0


class Trimmed(msgspec.Struct, frozen=True):
    """What `--json` prints: the revisions `dropped`, and the first that is left."""

    dropped: int
    first_revision: int
    because: str


@click.command(epilog="Example:  apportion ledger trim ledger-1.jsonl")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "last", type=click.IntRange(min=1), metavar="REVISION",
              help="Drop up to here; without it, as much as can be spared.")  # fmt: skip
@click.option("--older-than", "older_than_s", type=click.FloatRange(0, 1e9), default=DAY_S,
              show_default=True, metavar="SECONDS", help="Keep what is younger.")  # fmt: skip
@click.option("--bootstrap-nats", default="", metavar="URL", envvar="APPORTION_BOOTSTRAP_NATS_URL",
              show_envvar=True, help="The ledger, as the user `bootstrap`.")  # fmt: skip
@click.option("--bootstrap-key", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", envvar="APPORTION_BOOTSTRAP_NATS_KEY", show_envvar=True,
              help="Seed of its nkey.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what could be dropped, and drop nothing.")
@asks_ledger
def trim(
    *,
    where: Where,
    as_json: bool,
    archive: Path,
    last: int | None,
    older_than_s: float,
    bootstrap_nats: str,
    bootstrap_key: Path | None,
    dry_run: bool,
) -> None:
    """Drop the ledger's beginning, as far as ARCHIVE and the snapshots keep it.

    Keep the archive: `apportion verify --before ARCHIVE` reads it and the ledger as one chain.
    """
    given = Reach(bootstrap_nats, bootstrap_key) if bootstrap_nats else None
    dropping = None if dry_run else given or where.reach("bootstrap")
    try:
        outcome = run(
            _trim(where.reach(), dropping, archive, at_most=last or END, older_than_s=older_than_s)
        )
    except (ArchiveError, OSError) as error:
        raise NotFound(f"nothing dropped: {error}") from None
    if isinstance(outcome, CannotDrop):
        raise NotFound(f"nothing dropped: {outcome}")
    if as_json:
        print_json(outcome)
        return
    verb = "could be dropped" if dry_run else "dropped"
    text = f"{outcome.dropped} revisions {verb}; the ledger begins at {outcome.first_revision}"
    console().print(text, plain(f"(not more, for {outcome.because})"), soft_wrap=True)


async def _trim(
    reading: Reach, dropping: Reach | None, archive: Path, *, at_most: int, older_than_s: float
) -> Trimmed | CannotDrop:
    async with open_ledger(reading) as ledger:
        try:
            found = await droppable(ledger, archive, at_most=at_most, older_than_s=older_than_s)
        except CannotDrop as cannot:
            return cannot
        beginning = await Snapshots(ledger.wire).beginning_behind(found.last)
    count = max(found.last - found.first + 1, 0)
    if count and dropping:
        await _drop(dropping, found, beginning)
    return Trimmed(count, max(found.first, found.last + 1), found.because)


async def _drop(reach: Reach, found: Droppable, beginning: Beginning | None) -> None:
    """Drop it, once the state with which the rest begins is where only bootstrap writes."""
    ledger = await jetstream.connect(reach, name="apportion cli")
    try:
        if beginning is not None:
            info = await stream.check(ledger.wire)
            snapshots = Snapshots(ledger.wire)
            await snapshots.create(replicas=info.config["num_replicas"])
            await snapshots.begin_with(beginning)
        await stream.drop(ledger.wire, last=found.last)
    finally:
        await ledger.close()
