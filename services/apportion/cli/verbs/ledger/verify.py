"""`apportion verify`: check the ledger or an archive of it.

Invariant: exit code 0 means that every message of the range was read and every check held."""

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import OUTDATED, REFUSED, NotFound, Wrong
from apportion.cli.render.output import console, print_answer, progress
from apportion.cli.usage import FILE, Verb, read_keys
from apportion.core.audit import Auditor, Violation
from apportion.core.explain.text.words import many
from apportion.core.ledger.digest import digest
from apportion.core.ledger.receipts import ReceiptInvalid
from apportion.core.ledger.rules import rules_of
from apportion.core.ledger.state import State
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.archive import (
    ArchiveError,
    read_archive,
    read_opening,
    read_said,
    read_span,
)
from apportion.runtime.ledger.port import LedgerHole, Record
from apportion.runtime.ledger.reading import read_while
from apportion.runtime.ledger.receipts import ReceiptCheck, Receipts
from apportion.runtime.process.reach import Reach
from apportion_schemas import UnknownEvent

SHOWN = 10
CONTRADICTIONS_NAMED = 20  # events without effect that are named: the newest
TOLD_EVERY = 10_000


class Contradiction(msgspec.Struct, frozen=True):
    """An event that had no effect, and the reason."""

    revision: int
    type: str
    reason: str


class Verified(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document that `--json` prints."""

    ok: bool
    first_revision: int
    last_revision: int
    checked: int
    contradictions: int  # number of events that had no effect
    digest: str
    contradicting: tuple[Contradiction, ...] = ()  # the newest of them
    snapshots: tuple[int, ...] = ()
    differences: dict[str, int] = {}  # between cluster and ledger, by kind
    set_aside: dict[int, str] = {}  # reasons by skipped revision
    found: dict[str, int] = {}  # number of violations by check
    violations: tuple[Violation, ...] = ()  # the first few
    unknown: str = ""  # event of a newer build that ended the check
    receipts: int = 0  # number of receipts
    proven: int = 0  # number of events that they sign
    proven_to: int = 0  # last revision that they sign
    signed_at: str = ""


class _Verification:
    def __init__(
        self, auditor: Auditor, receipts: ReceiptCheck | None, *, start: int, last: int
    ) -> None:
        self.auditor = auditor
        self.start = start
        self.last = last
        self.violations: list[Violation] = []
        self.contradicting: deque[Contradiction] = deque(maxlen=CONTRADICTIONS_NAMED)
        self.snapshots: dict[int, str] = {}
        self.broken = False  # the rest cannot be read
        self.unknown = ""
        self.receipts = receipts
        if receipts is not None:
            receipts.goal = last
        self._tell = progress(last)

    def take(self, record: Record) -> bool:
        """Check the next record. Return False after the last one."""
        if self.receipts is not None:
            self.hold(self.receipts.take(record))  # first, because it covers unreadable events too
        before = self.auditor.contradictions
        try:
            self.note(self.auditor.take(record.revision, record.subject, record.payload))
        except UnknownEvent as unknown:
            self.unknown = f"revision {record.revision} on {record.subject}: {unknown}"
            self.broken = True
            return False
        if self.auditor.contradictions > before:
            refused = self.auditor.state.refused_events[-1]
            named = Contradiction(refused.revision, refused.subject, refused.reason)
            self.contradicting.append(named)
        if self.receipts is not None:
            self.hold(self.receipts.folded(self.auditor.state))
        snapshot = self.snapshots.get(record.revision)
        if snapshot is not None and digest(self.auditor.state) != snapshot:
            self.auditor.found["snapshot"] += 1  # every restart would begin with it
            text = "the snapshot at this revision differs from the state of the ledger"
            self.note([Violation(record.revision, "snapshot", text)])
        if record.revision % TOLD_EVERY == 0:
            self._tell(record.revision)
        return not record.revision >= self.last > 0

    def note(self, violations: list[Violation]) -> None:
        """Store the violations until the report is full; drop the rest."""
        self.violations += violations[: SHOWN - len(self.violations)]

    def hold(self, wrong: Iterable[tuple[int, str]]) -> None:
        for revision, text in wrong:
            self.auditor.found["receipt"] += 1
            self.note([Violation(revision, "receipt", text)])

    def outcome(self) -> Verified:
        auditor, receipts = self.auditor, self.receipts
        self.note(auditor.finish())
        return Verified(
            ok=not auditor.found and not self.unknown,
            first_revision=self.start,
            last_revision=auditor.state.revision,
            checked=auditor.checked,
            contradictions=auditor.contradictions,
            digest=digest(auditor.state),
            contradicting=tuple(self.contradicting),
            snapshots=tuple(sorted(self.snapshots)),
            differences=dict(sorted(auditor.state.differences.items())),
            set_aside={
                at: f"at revision {why.at} by {why.by}: {why.reason}"
                for at, why in sorted(auditor.state.rules.aside.items())
                if self.start <= at <= auditor.state.revision
            },
            found=dict(sorted(auditor.found.items())),
            violations=tuple(sorted(self.violations, key=lambda each: each.revision)),
            unknown=self.unknown,
            receipts=receipts.held if receipts else 0,
            proven=receipts.proven if receipts else 0,
            proven_to=receipts.last if receipts else 0,
            signed_at=receipts.time if receipts else "",
        )


@click.command(
    cls=Verb, epilog="Example:  apportion verify     apportion verify --archive ledger.jsonl"
)
@click.option("--from", "start", type=click.IntRange(min=1), default=1, metavar="REVISION",
              help="Check from this revision on.")  # fmt: skip
@click.option("--to", "last", type=click.IntRange(min=1), metavar="REVISION",
              help="Check up to this revision.  [default: the end]")  # fmt: skip
@click.option("--archive", "archives", type=FILE, multiple=True,
              help="Check this archive, not the ledger; repeatable, oldest first.")  # fmt: skip
@click.option("--before", type=FILE, multiple=True,
              help="Check this archive of trimmed events and then the ledger; repeat for more, "
              "oldest first.")  # fmt: skip
@click.option("--receipts", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              metavar="DIR",
              help="Also check the receipts in this folder; requires --key.")  # fmt: skip
@click.option("--key", "key_files", type=FILE, multiple=True,
              help="Public key of the signer of receipts; repeat to accept several.")  # fmt: skip
@asks_ledger
def command(
    *,
    where: Where,
    as_json: bool,
    start: int,
    last: int | None,
    archives: tuple[Path, ...],
    before: tuple[Path, ...],
    folder: Path | None,
    key_files: tuple[Path, ...],
) -> None:
    """Verify the ledger: its chain, writers, schemas, and all invariants at every revision.

    If the ledger was trimmed and --before is not given, the check starts at the oldest snapshot.

    Exit codes: 0 valid; 1 violations found; 3 ledger unreachable; 4 valid up to the first event of
    a newer build."""
    if last is not None and last < start:
        raise Wrong(f"--to {last} is before --from {start}; swap them")
    if archives and before:
        raise Wrong(
            "--archive and --before exclude each other: only --before also checks the ledger"
        )
    if bool(folder) != bool(key_files):
        raise Wrong("--receipts and --key require each other")
    try:
        receipts = ReceiptCheck(Receipts(folder), read_keys(key_files)) if folder else None
    except (ReceiptInvalid, OSError) as error:
        raise NotFound(f"--receipts: {error}") from None
    if archives:
        auditor = Auditor(State(rules=rules_of(read_said(archives))), start=start)
        verification = _Verification(auditor, receipts, start=start, last=last or 0)
        if receipts is not None and not last:
            with suppress(ArchiveError, OSError):  # `_read_archives` reports the error
                receipts.goal = read_span(archives[-1])[1]
        _read_archives(archives, verification)
        outcome = verification.outcome()
    else:
        outcome = run(_verify_ledger(where.reach(), (start, last), before, receipts))
    print_answer(outcome, lambda: _say(outcome), as_json=as_json)
    if not outcome.ok:
        sys.exit(REFUSED if outcome.found else OUTDATED)


async def _verify_ledger(
    reach: Reach,
    span: tuple[int, int | None],
    before: tuple[Path, ...],
    receipts: ReceiptCheck | None,
) -> Verified:
    start, last = span
    async with open_ledger(reach) as ledger:
        info = await jetstream.check_stream(ledger)
        newest = info.state.last_seq
        if last is not None and last > newest:
            raise Wrong(f"--to: revision {last} is beyond the end of the ledger, {newest}")
        snapshots = Snapshots(ledger.wire)
        if before:
            for archive in before:
                try:
                    created = read_opening(archive).created
                except (ArchiveError, OSError) as error:
                    raise Wrong(f"--before: {error}") from None
                if created != info.created:
                    raise Wrong(
                        f"--before: {archive} belongs to a ledger created at {created}, and this "
                        f"one was created at {info.created}"
                    )
            state = State(
                rules=rules_of([*read_said(before), *await stream.read_said(ledger.wire)])
            )
        else:
            # Before the start, or else the oldest snapshot left.
            first = info.state.first_seq
            state = await snapshots.restore(at_most=start - 1) if start >= first else State()
            if state.revision + 1 < first:
                state = await snapshots.oldest(first) or State(rules=await snapshots.rules())
        start = max(start, state.revision + 1) if info.state.first_seq > start else start
        auditor = Auditor(state, start=start)
        verification = _Verification(auditor, receipts, start=start, last=last or newest)
        await asyncio.to_thread(_read_archives, before, verification)
        for stored in await snapshots.written():
            behind = max(verification.auditor.state.revision, start - 1)
            if behind < stored.revision <= verification.last:
                found = await snapshots.load(stored)
                if found is not None:
                    verification.snapshots[stored.revision] = digest(found)
        if verification.last > verification.auditor.state.revision and not verification.broken:
            await _read(ledger, verification)
        if receipts is not None and last is None and not verification.broken:
            verification.hold(receipts.finish(state.revision + 1))
        return verification.outcome()


async def _read(ledger: JetStreamLedger, verification: _Verification) -> None:
    start = verification.auditor.state.revision + 1
    try:
        await read_while(ledger, verification.take, start=start)
    except LedgerHole as hole:
        verification.broken = True
        verification.auditor.found["gap"] += 1
        verification.note([Violation(verification.auditor.state.revision + 1, "gap", str(hole))])


def _read_archives(paths: tuple[Path, ...], verification: _Verification) -> None:
    try:
        for path in paths:
            for record in read_archive(path):
                known = verification.auditor.state.revision
                if record.revision > known and not verification.take(record):
                    return
    except (ArchiveError, OSError) as error:
        verification.broken = True
        verification.auditor.found["archive"] += 1
        revision = verification.auditor.state.revision + 1
        verification.note([Violation(revision, "archive", str(error))])


def _say(outcome: Verified) -> None:
    out = console(stderr=not outcome.ok)
    for each in outcome.violations:
        out.say(f"revision {each.revision}: {each.check}: {each.text}")
    more = sum(outcome.found.values()) - len(outcome.violations)
    if more > 0:
        out.print(f"and {more} more")
    span = f"revisions {outcome.first_revision} to {outcome.last_revision}"
    compared = f", {many(len(outcome.snapshots), 'snapshot')} compared" if outcome.snapshots else ""
    count = outcome.contradictions
    refused = f"{many(count, 'event')} had no effect" if count else "all events applied"
    if outcome.differences:
        counts = ", ".join(f"{kind} {count:,}" for kind, count in outcome.differences.items())
        out.print(f"differences between cluster and ledger: {counts}")
    earlier = outcome.contradictions - len(outcome.contradicting)
    if earlier > 0:
        out.print(f"{many(earlier, 'earlier event')} had no effect")
    for named in outcome.contradicting:
        out.say(f"revision {named.revision}: {named.type} had no effect: {named.reason}")
    for at, why in outcome.set_aside.items():
        out.say(f"revision {at} is skipped: set aside {why}")
    if not outcome.found:
        out.print(f"valid: {span}, {refused}{compared}\nstate {outcome.digest}")
    else:
        first = outcome.violations[0]
        out.print(f"invalid: {span}; first violation at revision {first.revision}", style="red")
    if outcome.receipts:
        verb = "covers" if outcome.receipts == 1 else "cover"
        out.say(
            f"{many(outcome.receipts, 'receipt')} {verb} {outcome.proven:,} events, up to revision "
            f"{outcome.proven_to:,}, signed at {outcome.signed_at}"
        )
    if outcome.unknown:
        out.say(f"not checked from here on: {outcome.unknown}", "red")
