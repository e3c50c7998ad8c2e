"""`apportion ledger`: create, check, resize, archive and trim the stream.

Invariants: `trim` drops only events that it has just read in the archive, and keeps what services
need to start. `enable` and `set-aside` do not halt readers, unless forced."""

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import by_whom, open_ledger, person, run, with_ledger, write_all
from apportion.cli.exits import REFUSED, NotFound, Wrong
from apportion.cli.render.output import console, plain, print_answer, print_json, say, warn
from apportion.cli.usage import FILE, VerbGroup, reasoned
from apportion.core.doctor.checks import size
from apportion.core.explain.text.words import listed, many
from apportion.core.ledger.rules import Rules, legal_version, missing
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.consumers import ReaderThere, list_readers
from apportion.runtime.jetstream.retention import CannotDrop, droppable
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.stream import StreamInfo
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.archive import ArchiveError, ArchiveWriter
from apportion.runtime.ledger.port import LedgerDrifted
from apportion.runtime.ledger.reading import read_to
from apportion.runtime.process.reach import Reach
from apportion_schemas import CATALOGUE, EventError, FormatEnabled, RevisionSetAside, UnknownEvent
from apportion_schemas.catalogue import BY_PAYLOAD

END = 1 << 62
DAY_S = 86_400.0
WRITERS = tuple(dict.fromkeys(row.writer for row in CATALOGUE))
_VERSIONS = {row.name: row.version for row in CATALOGUE}
_SHOWN = 6
Look = Callable[[JetStreamLedger], Coroutine[Any, Any, StreamInfo]]  # an operation on the stream


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document that `apportion ledger check --json` prints."""

    ok: bool
    first_revision: int = 0
    last_revision: int = 0
    bytes: int = 0
    max_bytes: int = -1
    replicas: int = 0
    error: str = ""


@click.group(cls=VerbGroup, epilog="Example:  apportion ledger check")
def command() -> None:
    """Create, check, resize, archive or trim the ledger.

    Exit codes: 0 done, or all settings are correct; 1 a wrong setting, or nothing was archived or
    trimmed; 3 ledger unreachable, or access denied."""


@command.command(epilog="Example:  apportion ledger create --replicas 3")
@click.option("--replicas", type=click.IntRange(1, 5), default=1, show_default=True, metavar="N",
              help="Number of servers that store the ledger; use 3 in production.")  # fmt: skip
@click.option("--max-bytes", type=click.IntRange(min=-1), default=-1, show_default=True,
              metavar="BYTES",
              help="Maximum size in bytes; -1 is no limit.")  # fmt: skip
@asks_ledger
def create(*, where: Where, as_json: bool, replicas: int, max_bytes: int) -> None:
    """Create the stream, or check an existing one. Requires the user `bootstrap`."""
    _tell(
        where.reach("bootstrap"),
        partial(jetstream.create_stream, replicas=replicas, max_bytes=max_bytes),
        as_json=as_json,
    )


@command.command(epilog="Example:  apportion ledger resize --max-bytes 5000000000")
@click.option("--max-bytes", type=click.IntRange(min=-1), required=True, metavar="BYTES",
              help="Maximum size in bytes; -1 is no limit.")  # fmt: skip
@asks_ledger
def resize(*, where: Where, as_json: bool, max_bytes: int) -> None:
    """Change the maximum size of the ledger. Requires the user `bootstrap`.

    Services that were blocked by a full ledger resume at once."""

    async def resized(ledger: JetStreamLedger) -> StreamInfo:
        return await stream.resize(ledger.wire, max_bytes=max_bytes)

    _tell(where.reach("bootstrap"), resized, as_json=as_json)


@command.command(epilog="Example:  apportion ledger check --json")
@asks_ledger
def check(*, where: Where, as_json: bool) -> None:
    """Check all stream settings that the ledger relies on."""
    _tell(where.reach("operator"), jetstream.check_stream, as_json=as_json)


@command.command(epilog="Example:  apportion ledger archive ledger.jsonl")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@asks_ledger
def archive(*, where: Where, as_json: bool, file: Path) -> None:
    """Copy all events into FILE; the ledger is not changed.

    An archive can be as large as the ledger. To check it, use `apportion verify --archive FILE`."""

    async def copied(ledger: JetStreamLedger) -> int:
        info = await jetstream.check_stream(ledger)
        with ArchiveWriter(file, stream=STREAM, created=info.created) as writer:
            if info.state.messages:
                await read_to(ledger, info.state.last_seq, writer.add, start=info.state.first_seq)
        return writer.revisions

    try:
        revisions = with_ledger(where.reach(), copied)
    except (ArchiveError, OSError) as error:
        raise NotFound(f"cannot write the archive: {error}") from None
    body = {"file": str(file), "revisions": revisions}
    print_answer(body, f"{revisions:,} events written to {file}", as_json=as_json)


def words_of(checked: Checked) -> str:
    """Return a one-line summary of a ledger whose settings are correct."""
    most = f"at most {size(checked.max_bytes)}" if checked.max_bytes >= 0 else "no size limit"
    return (
        f"ledger ok: revisions {checked.first_revision} to {checked.last_revision}, "
        f"{size(checked.bytes)} ({most}), {many(checked.replicas, 'replica')}"
    )


def _tell(reach: Reach, look: Look, *, as_json: bool) -> None:
    async def looked() -> StreamInfo | LedgerDrifted:
        async with open_ledger(reach, checked=False) as ledger:
            try:
                return await look(ledger)
            except LedgerDrifted as drifted:
                return drifted

    outcome = run(looked())
    if isinstance(outcome, LedgerDrifted):
        checked = Checked(ok=False, error=str(outcome))
    else:
        state = outcome.state
        checked = Checked(
            ok=True, first_revision=state.first_seq, last_revision=state.last_seq,
            bytes=state.bytes, max_bytes=outcome.config.get("max_bytes", -1),
            replicas=outcome.config.get("num_replicas", 0),
        )  # fmt: skip
    print_answer(
        checked,
        lambda: say(words_of(checked)) if checked.ok else warn(checked.error, style="red"),
        as_json=as_json,
    )
    if not checked.ok:
        sys.exit(REFUSED)


class Trimmed(msgspec.Struct, frozen=True):
    """The document that `--json` prints: how many events were dropped, and the first one left."""

    dropped: int
    first_revision: int
    because: str


@command.command(epilog="Example:  apportion ledger trim ledger-1.jsonl")
@click.argument("archive", type=FILE)
@click.option("--to", "last", type=click.IntRange(min=1), metavar="REVISION",
              help="Trim up to this revision.  [default: as much as possible]")  # fmt: skip
@click.option("--older-than", "older_than_s", type=click.FloatRange(0, 1e9), default=DAY_S,
              show_default=True, metavar="SECONDS",
              help="Trim only events older than this.")  # fmt: skip
@click.option("--bootstrap-nats", default="", metavar="URL", envvar="APPORTION_BOOTSTRAP_NATS_URL",
              show_envvar=True, help="URL of the ledger for the user `bootstrap`.")  # fmt: skip
@click.option("--bootstrap-key", type=FILE,
              metavar="FILE", envvar="APPORTION_BOOTSTRAP_NATS_KEY", show_envvar=True,
              help="File with the nkey seed of the user `bootstrap`.")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Show what could be trimmed, without changing anything."
)
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
    """Remove the oldest events from the ledger.

    Only events that ARCHIVE and the snapshots preserve are removed. Keep the archive. To verify it
    together with the ledger, use `apportion verify --before ARCHIVE`."""
    given = Reach(bootstrap_nats, bootstrap_key) if bootstrap_nats else None
    dropping = None if dry_run else given or where.reach("bootstrap")

    async def trimmed() -> Trimmed | CannotDrop:
        async with open_ledger(where.reach()) as ledger:
            try:
                found = await droppable(
                    ledger, archive, at_most=last or END, older_than_s=older_than_s
                )
            except CannotDrop as cannot:
                return cannot
            beginning = await Snapshots(ledger.wire).beginning_behind(found.last)
        count = max(found.last - found.first + 1, 0)
        if count and dropping:
            # First store the snapshot that the rest begins with, where only bootstrap writes.
            async with open_ledger(dropping, checked=False) as ledger:
                if beginning is not None:
                    info = await stream.check(ledger.wire)
                    snapshots = Snapshots(ledger.wire)
                    await snapshots.create(replicas=info.config["num_replicas"])
                    await snapshots.begin_with(beginning)
                await stream.drop(ledger.wire, last=found.last)
        return Trimmed(count, max(found.first, found.last + 1), found.because)

    try:
        outcome = run(trimmed())
    except (ArchiveError, OSError) as error:
        raise NotFound(f"nothing trimmed: {error}") from None
    if isinstance(outcome, CannotDrop):
        raise NotFound(f"nothing trimmed: {outcome}")
    verb = "could be trimmed" if dry_run else "trimmed"
    begins = "would begin" if dry_run else "begins"
    text = f"{outcome.dropped:,} revisions {verb}; the ledger {begins} at {outcome.first_revision}"
    print_answer(outcome, f"{text} (limit: {outcome.because})", as_json=as_json)


class Wanted(msgspec.Struct, frozen=True):
    """A format of this build that is not enabled yet, and the readers that it would halt."""

    format: str
    writer: str
    halts: dict[str, int]


class Enabled(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document that `enable --json` prints, with the revision that enabled each format."""

    wanted: tuple[Wanted, ...]
    revisions: dict[str, int | None] = {}


@command.command(epilog="Example:  apportion ledger enable     apportion ledger enable PodPlaced@3")
@click.argument("formats", nargs=-1, metavar="[EVENT@VERSION]...")
@click.option("--all", "every", is_flag=True, help="Enable all formats that this build writes.")
@click.option("--reason", default="", help="Reason, for the audit trail.")
@click.option("--force", is_flag=True, help="Enable even if running readers would halt.")
@by_whom
@asks_ledger
def enable(
    *, where: Where, as_json: bool, formats: tuple[str, ...], every: bool, reason: str,
    force: bool, by: str,
) -> None:  # fmt: skip
    """Enable new event types or versions.

    Without arguments, list those that are not enabled yet.

    Readers ignore formats that are not enabled. A reader that does not know an enabled format halts
    at its first event, so upgrade all readers first. Running readers that would halt are named,
    except auditors, which read a copy in their own account.

    Exit codes: 0 enabled, or listed; 1 running readers would halt; 3 ledger unreachable."""
    asked = [_parsed(each) for each in formats]
    if asked and every:
        raise click.UsageError("name formats or give --all, not both")
    outcome = run(_enable(where, asked, person(by), reason, every=every, force=force))
    if as_json:
        print_json(outcome)
        return
    out = console()
    for name, revision in outcome.revisions.items():
        out.print(plain(f"{name} enabled at revision {revision}"))
    if outcome.revisions:
        return
    for each in outcome.wanted:
        halts = f"; would halt: {_counted(each.halts)}" if each.halts else "; halts no reader"
        out.say(f"{each.format}, written by the {each.writer}{halts}")
    if not outcome.wanted:
        out.print("all formats that this build writes are enabled")


@command.command("set-aside", epilog="Example:  apportion ledger set-aside 4711 --reason 'bug 99'")
@click.argument("revisions", nargs=-1, required=True, type=click.IntRange(min=1))
@click.option("--reason", default="", callback=reasoned,
              help="Reason, for the audit trail.  [required]")  # fmt: skip
@click.option("--force", is_flag=True, help="Also skip events that this build can read.")
@by_whom
@asks_ledger
def set_aside(
    *, where: Where, as_json: bool, revisions: tuple[int, ...], reason: str, force: bool, by: str
) -> None:
    """Skip events that block readers; they stay in the ledger.

    Readers that halted at these events continue. Readers that have applied the events restart
    without them. To undo `ledger enable`, give its revision; readers then also skip all events of
    the formats that it enabled.

    Exit codes: 0 done; 1 no such event, or it is needed; 3 ledger unreachable."""
    who, chosen = person(by), list(dict.fromkeys(revisions))

    async def written() -> dict[int, int | None]:
        async with open_ledger(where.reach()) as ledger:
            rules = await stream.read_rules(ledger.wire)
            last = await ledger.last_revision()
            for revision in chosen:
                await _check(ledger, rules, revision, force=force)
            # In a trimmed ledger, readers restart from a snapshot before that revision.
            first, earliest = await ledger.first_revision(), min(chosen)
            stored = await Snapshots(ledger.wire).stored() if first > 1 else []
            if first > 1 and not any(first - 1 <= each.revision < earliest for each in stored):
                raise NotFound(
                    f"cannot skip revision {earliest}: the ledger begins at {first}, and readers "
                    "have no earlier snapshot to restart from"
                )
        data = [RevisionSetAside(revision=each, by=who, reason=reason) for each in chosen]
        return dict(zip(chosen, await write_all(where.reach(), data, basis=last), strict=True))

    outcome = run(written())
    if as_json:
        print_json({"revisions": outcome, "by": who, "reason": reason})
        return
    for revision, at in outcome.items():
        say(f"revision {revision} is skipped, as recorded at revision {at}")


def _parsed(text: str) -> tuple[str, int]:
    """Split EVENT@VERSION into the event's name and the version. Raises Wrong."""
    name, _, number = text.partition("@")
    newest = _VERSIONS.get(name, 0)
    version = int(number) if number.isascii() and number.isdecimal() else 0
    version = newest if not number else version
    if not 0 < version <= newest:
        known = f"knows it up to version {newest}" if newest else "does not know this event"
        raise Wrong(
            f"{text!r}: this build {known}; write EVENT@VERSION, and use a build that knows it"
        )
    return name, version


async def _enable(
    where: Where,
    asked: Sequence[tuple[str, int]],
    by: str,
    reason: str,
    *,
    every: bool,
    force: bool,
) -> Enabled:
    async with open_ledger(where.reach()) as ledger:
        rules = await stream.read_rules(ledger.wire)
        last = await ledger.last_revision()
        readers = await list_readers(ledger.wire)
    wanted = tuple(
        Wanted(each, writer, _halting(readers, *_parsed(each)))
        for writer in WRITERS
        for each in missing(rules, writer, last + 1)
    )
    chosen = [_parsed(each.format) for each in wanted] if every else list(asked)
    for name, version in chosen:
        if legal_version(name, rules.enabled.get(name, ()), last + 1) >= version:
            raise NotFound(f"{name}@{version} is already enabled")
        halts = _halting(readers, name, version)
        if halts and not force:
            raise NotFound(
                f"{name}@{version} would halt these readers: {_counted(halts)}; upgrade them "
                "first, or use --force"
            )
    data = [FormatEnabled(format=n, version=v, by=by, reason=reason) for n, v in chosen]
    revisions = await write_all(where.reach(), data, basis=last) if data else []
    names = [f"{name}@{version}" for name, version in chosen]
    return Enabled(wanted, dict(zip(names, revisions, strict=True)))


def _halting(readers: Sequence[ReaderThere], name: str, version: int) -> dict[str, int]:
    return dict(Counter(each.name for each in readers if not each.knows(name, version)))


def _counted(halts: dict[str, int]) -> str:
    named = [f"{name} ({count})" if count > 1 else name for name, count in sorted(halts.items())]
    return listed(named, _SHOWN)


async def _check(ledger: JetStreamLedger, rules: Rules, revision: int, *, force: bool) -> None:
    """Raise NotFound if the event is missing, already without effect, or readable by this build.

    With `force`, an event that this build can read is accepted."""
    record = await stream.read_record(ledger.wire, revision)
    if record is None:
        raise NotFound(f"the ledger has no revision {revision}")
    try:
        data = rules.read(revision, record.subject, record.payload).data
    except UnknownEvent:
        return
    except EventError as error:
        raise NotFound(f"revision {revision} already has no effect: {error}") from None
    if isinstance(data, RevisionSetAside):
        raise NotFound(f"revision {revision} itself skips another event, and cannot be skipped")
    if not (force or isinstance(data, FormatEnabled)):
        raise NotFound(
            f"this build can read revision {revision} ({BY_PAYLOAD[type(data)].name}); to skip it "
            "anyway, use --force, which restarts every service"
        )
