"""`apportion ledger enable` and `set-aside`: by which rules everybody reads the ledger from now on.

Invariant: nobody's readers halt unasked; what would is said first, and only `--force` goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import by_whom, open_ledger, person, run, write_all
from apportion.cli.exits import NotFound, Wrong
from apportion.cli.render.output import console, plain, print_json
from apportion.cli.usage import reasoned
from apportion.core.ledger.rules import Rules, legal_version, missing
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.readers import ReaderThere, list_readers
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion_schemas import CATALOGUE, EventError, FormatEnabled, RevisionSetAside, UnknownEvent
from apportion_schemas.catalogue import BY_PAYLOAD

WRITERS = tuple(dict.fromkeys(row.writer for row in CATALOGUE))
_VERSIONS = {row.name: row.version for row in CATALOGUE}
_SHOWN = 6


class Wanted(msgspec.Struct, frozen=True):
    """A format that this build writes and the ledger does not allow, and who would halt at it."""

    format: str
    writer: str
    halts: dict[str, int]


class Enabled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `enable --json` prints; `revisions` are those at which formats were enabled."""

    wanted: tuple[Wanted, ...]
    revisions: dict[str, int | None] = {}


class SetAside(msgspec.Struct, frozen=True):
    """What `set-aside --json` prints: each revision, and the one that sets it aside."""

    revisions: dict[int, int | None]
    by: str
    reason: str


@click.command(epilog="Example:  apportion ledger enable     apportion ledger enable PodPlaced@3")
@click.argument("formats", nargs=-1, metavar="[EVENT@VERSION]...")
@click.option("--all", "every", is_flag=True, help="All that this build writes.")
@click.option("--reason", default="", help="Why, for whoever asks later.")
@click.option("--force", is_flag=True, help="Also while readers run that would halt.")
@by_whom
@asks_ledger
def enable(
    *, where: Where, as_json: bool, formats: tuple[str, ...], every: bool, reason: str,
    force: bool, by: str,
) -> None:  # fmt: skip
    """Let builds write events of a new type, or of a newer version; without arguments, list them.

    What is not enabled changes nothing, for any reader. A reader that does not know what is enabled
    halts before the first of it, so upgrade all of them before; those that run are named, all but
    auditors, who read a copy in an account of their own.

    Exit codes: 0 done, or listed; 1 readers run that would halt; 3 the ledger cannot be reached.
    """
    asked = [_parsed(each) for each in formats]
    if asked and every:
        raise click.UsageError("name formats, or give --all, not both")
    outcome = run(_enable(where, asked, person(by), reason, every=every, force=force))
    if as_json:
        print_json(outcome)
        return
    out = console()
    for name, revision in outcome.revisions.items():
        out.print(plain(f"{name} is enabled from revision {revision} on"))
    if outcome.revisions:
        return
    for each in outcome.wanted:
        halts = f"; would halt: {_counted(each.halts)}" if each.halts else "; no reader would halt"
        out.print(plain(f"{each.format}, written by the {each.writer}{halts}"), soft_wrap=True)
    if not outcome.wanted:
        out.print("this build writes nothing that is not enabled on this ledger")


@click.command("set-aside", epilog="Example:  apportion ledger set-aside 4711 --reason 'bug 99'")
@click.argument("revisions", nargs=-1, required=True, type=click.IntRange(min=1))
@click.option("--reason", default="", callback=reasoned,
              help="Why, for whoever asks later.  [required]")  # fmt: skip
@click.option("--force", is_flag=True, help="Also what this build reads and applies.")
@by_whom
@asks_ledger
def set_aside(
    *, where: Where, as_json: bool, revisions: tuple[int, ...], reason: str, force: bool, by: str
) -> None:
    """Have every reader pass over events that halt readers; they stay where they are, as evidence.

    Readers that had halted before them go on; those that had applied them begin anew without them.
    To undo `ledger enable`, and pass over all that was written under it, name its revision.

    Exit codes: 0 done; 1 there is no such event, or it is needed; 3 the ledger cannot be reached.
    """
    who = person(by)
    outcome = SetAside(run(_set_aside(where, revisions, who, reason, force=force)), who, reason)
    if as_json:
        print_json(outcome)
        return
    for revision, at in outcome.revisions.items():
        console().print(f"revision {revision} is set aside, by revision {at}")


def _parsed(text: str) -> tuple[str, int]:
    """The event and the version that are meant. Raises Wrong."""
    name, _, number = text.partition("@")
    newest = _VERSIONS.get(name, 0)
    version = int(number) if number.isascii() and number.isdecimal() else 0
    version = newest if not number else version
    if not 0 < version <= newest:
        known = f"knows it up to version {newest}" if newest else "knows no event of that name"
        raise Wrong(
            f"{text!r}: this build {known}; write EVENT@VERSION, and use the command line of the "
            "build that is to write it"
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
    wanted = tuple(_wanted(rules, last, readers))
    chosen = [_parsed(each.format) for each in wanted] if every else list(asked)
    for name, version in chosen:
        if legal_version(name, rules.enabled.get(name, ()), last + 1) >= version:
            raise NotFound(f"{name}@{version} is enabled already")
        halts = _halting(readers, name, version)
        if halts and not force:
            raise NotFound(
                f"{name}@{version}: these readers do not know it and would halt: "
                f"{_counted(halts)}; upgrade them first, or give --force"
            )
    data = [FormatEnabled(format=n, version=v, by=by, reason=reason) for n, v in chosen]
    revisions = await write_all(where.reach(), data, basis=last) if data else []
    names = [f"{name}@{version}" for name, version in chosen]
    return Enabled(wanted, dict(zip(names, revisions, strict=True)))


def _wanted(rules: Rules, last: int, readers: Sequence[ReaderThere]) -> Iterable[Wanted]:
    for writer in WRITERS:
        for each in missing(rules, writer, last + 1):
            yield Wanted(each, writer, _halting(readers, *_parsed(each)))


def _halting(readers: Sequence[ReaderThere], name: str, version: int) -> dict[str, int]:
    """How many readers of which name do not know the format."""
    return dict(Counter(each.name for each in readers if not each.knows(name, version)))


def _counted(halts: dict[str, int]) -> str:
    named = [f"{name} ({count})" if count > 1 else name for name, count in sorted(halts.items())]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


async def _set_aside(
    where: Where, revisions: Sequence[int], by: str, reason: str, *, force: bool
) -> dict[int, int | None]:
    chosen = list(dict.fromkeys(revisions))
    async with open_ledger(where.reach()) as ledger:
        rules = await stream.read_rules(ledger.wire)
        last = await ledger.last_revision()
        for revision in chosen:
            await _check(ledger, rules, revision, force=force)
        await _check_beginning(ledger, min(chosen))
    data = [RevisionSetAside(revision=each, by=by, reason=reason) for each in chosen]
    written = await write_all(where.reach(), data, basis=last)
    return dict(zip(chosen, written, strict=True))


async def _check(ledger: JetStreamLedger, rules: Rules, revision: int, *, force: bool) -> None:
    """Raises NotFound: it is not there, is set aside already, or is read well by this build."""
    record = await stream.read_record(ledger.wire, revision)
    if record is None:
        raise NotFound(f"the ledger has no revision {revision}")
    try:
        data = rules.read(revision, record.subject, record.payload).data
    except UnknownEvent:
        return
    except EventError as error:
        raise NotFound(f"revision {revision} changes nothing as it is: {error}") from None
    if isinstance(data, RevisionSetAside):
        raise NotFound(f"revision {revision} sets another aside, and cannot be set aside itself")
    if not (force or isinstance(data, FormatEnabled)):
        raise NotFound(
            f"revision {revision} is {BY_PAYLOAD[type(data)].name}, which this build reads; with "
            "--force it is set aside all the same, and every service begins anew without it"
        )


async def _check_beginning(ledger: JetStreamLedger, revision: int) -> None:
    """Raises NotFound: where the ledger was trimmed, nobody could begin before that revision."""
    first = await ledger.first_revision()
    if first <= 1:
        return
    stored = await Snapshots(ledger.wire).stored()
    if not any(first - 1 <= each.revision < revision for each in stored):
        raise NotFound(
            f"the ledger begins at {first}, and no snapshot is from before {revision}: nobody "
            "could begin anew without it"
        )
