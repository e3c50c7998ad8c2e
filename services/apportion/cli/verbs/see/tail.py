"""`apportion tail`: print the ledger's events as sentences, read directly from NATS.

Invariant: if a given time means yesterday, or is outside of the ledger, a message says so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as TookTooLong
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, Self
from urllib.parse import unquote

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.client.moments import FORMS, MOMENT, when
from apportion.cli.exits import Unreachable, Wrong
from apportion.cli.render.output import console, print_json, say
from apportion.cli.usage import Verb
from apportion.core.explain.text.event_text import Teller
from apportion.core.explain.text.names import did_you_mean
from apportion.core.ledger.rules import Rules, said_at
from apportion.runtime.jetstream import client, stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.moments import Moment, MomentError, parse_moment
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    SUBJECT_PREFIX,
    LedgerError,
    LedgerUnavailable,
    Record,
)
from apportion.runtime.ledger.reading import following
from apportion.runtime.process.reach import Reach
from apportion.runtime.process.waiting import first_of
from apportion_schemas import CATALOGUE, EventError, FormatEnabled, PodRejected, PodSubmitted
from apportion_schemas.catalogue import token

NAME_CELLS = 20
UNANSWERED_S = 5.0
LOOK_S = 1.0
ANSWER_S = 5.0
NAMES_KEPT = 100_000
Show = Callable[[Record, Rules], None]


class Shown(msgspec.Struct, frozen=True):
    """A line of `--json`: the stored event, or the reason why no reader applies it."""

    revision: int
    subject: str
    event: msgspec.Raw | None = None
    error: str = ""


class _Done(Exception):
    """Raised when all requested events have been shown."""


class _Moved(Exception):
    """Raised when the ledger is reachable at another address."""


@click.command(cls=Verb, epilog="Example:  apportion tail --from 1 --subject 'placement.>'")
@click.option("--from", "start", type=MOMENT, metavar="TIME",
              help=f"Start time: {FORMS}.  [default: now]")  # fmt: skip
@click.option("--to", "end", type=MOMENT, metavar="TIME",
              help="End time; requires --from.")  # fmt: skip
@click.option("--subject", default="", metavar="PATTERN",
              help="Show only events on this NATS subject, such as placement.> or "
              "apportion.v1.binding.*.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--no-follow", is_flag=True, help="Stop at the current end of the ledger.")
@asks_ledger
def command(
    *, where: Where, as_json: bool, start: str | None, end: str | None, subject: str,
    limit: int | None, no_follow: bool,
) -> None:  # fmt: skip
    """Print events as they happen, one per line; with --json, one JSON document per line.

    Lines are in the order of the ledger. Times come from the clocks of the services, so a line may
    have an earlier time than the line before it. The verb reconnects if the ledger goes away, even
    if `apportion up` restarts on other ports.

    Exit codes: 0 done, or stopped with Ctrl-C; 2 wrong usage, or a start or end beyond the end of
    the ledger; 3 ledger unreachable at start, or access denied."""
    subject = pattern_of(subject) if subject else ALL_SUBJECTS
    span = span_of(start, end, closed=no_follow)
    with SubmittedNames(where) as names, contextlib.suppress(KeyboardInterrupt):
        show = _as_json if as_json else _in_words(Teller(names.find))
        run(_tail(where, subject, span, limit, show=show))


def pattern_of(text: str) -> str:
    """Return the NATS subject of `--subject`. Raises Wrong if no event can match it."""
    pattern = text if text.startswith(SUBJECT_PREFIX) else SUBJECT_PREFIX + text
    if " " in pattern or ".." in pattern or pattern.endswith("."):
        raise Wrong(f"--subject: {text!r} is not a NATS subject; write one such as placement.>")
    channel, dot, _ = pattern.removeprefix(SUBJECT_PREFIX).partition(".")
    known = sorted({row.channel for row in CATALOGUE})
    if (channel in known or channel == "*") and not dot:
        fix = f"did you mean {channel}.>?"
    elif channel not in (*known, "*", ">"):
        of_that_name = did_you_mean(f"{channel}.>", [f"{each}.>" for each in known])
        fix = of_that_name or f"known: {', '.join(f'{each}.>' for each in known)}"
    else:
        return pattern
    raise Wrong(f"--subject: {text!r} matches no event; {fix}")


async def _tail(where: Where, subject: str, span: Span, limit: int | None, *, show: Show) -> None:
    shown, rules = 0, Rules()
    begin: int | None = None
    end: int | None = None

    def deliver(record: Record) -> None:
        nonlocal shown, begin
        if shown == limit or (end is not None and record.revision > end):
            raise _Done
        said = said_at(record.revision, record.subject, record.payload)
        if said is not None and isinstance(said.data, FormatEnabled):
            rules.enable(said.revision, said.data)
        show(record, rules)
        shown, begin = shown + 1, record.revision + 1
        if shown == limit:
            raise _Done

    while True:
        reach = where.reach()
        async with open_ledger(reach) as ledger:
            rules = await stream.read_rules(ledger.wire)
            if begin is None:
                begin, end = await span.revisions(ledger)
            try:
                async with following(ledger, deliver, start=begin, subjects=(subject,)) as there:
                    followed = there.caught_up() if span.closed else there.join()
                    saying = _say_unanswered(ledger.wire, where, reach)
                    denied = await first_of(followed, ledger.wire.turned_away(), saying)
                    if denied is not None:
                        raise denied
            except _Moved:
                continue
            except _Done:
                pass
            return


async def _say_unanswered(wire: Wire, where: Where, reach: Reach) -> None:
    """Print when the ledger stops answering, and when it resumes. Raises _Moved."""

    def elsewhere() -> bool:
        """Return True if `up` has restarted, with the ledger at another address."""
        with contextlib.suppress(Unreachable):
            return where.running() and where.reach() != reach
        return False

    said = False
    while True:
        try:
            await wire.wait_connected(UNANSWERED_S)
        except LedgerUnavailable as error:
            if not said:
                click.echo(
                    f"{error}; retrying, stop with Ctrl-C (is `apportion up` running?)", err=True
                )
            said = True
            if not await asyncio.to_thread(elsewhere):
                continue
            click.echo("ledger reconnected", err=True)
            raise _Moved from None
        if said:
            click.echo("ledger reconnected", err=True)
        said = False
        await asyncio.sleep(LOOK_S)


def _as_json(record: Record, rules: Rules) -> None:
    error = ""
    try:
        rules.read(record.revision, record.subject, record.payload)
    except EventError as refused:
        error = str(refused)
    print_json(Shown(record.revision, record.subject, record.json, error), line=True)


def _in_words(teller: Teller) -> Show:
    out = console()

    def show(record: Record, rules: Rules) -> None:
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except EventError as refused:
            text = f"not applied, on subject {unquote(record.subject)}: {refused}"
            out.say(f"{record.revision:>8} {text}", "red")
            return
        name = f"{type(event.data).__name__:<{NAME_CELLS}}"
        out.say(f"{record.revision:>8} {event.time[11:23]} {name} {teller.line(event.data)}")

    return show


class SubmittedNames:
    """Looks up the names of pods that were submitted before the first event shown.

    Lookups use their own connection and thread. Invariant: the reader waits for each name, so
    records do not pile up. After a failure, no more names are looked up."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._ledger: JetStreamLedger | None = None
        self._rules = Rules()
        self._answers = True
        self.find = lru_cache(NAMES_KEPT)(self._find)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ledger is not None:
            closing = asyncio.run_coroutine_threadsafe(self._ledger.close(), self._loop)
            with contextlib.suppress(TookTooLong):
                closing.result(ANSWER_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)

    def _find(self, uid: str) -> str:
        if not self._answers:
            return ""
        asked = asyncio.run_coroutine_threadsafe(self._ask(uid), self._loop)
        try:
            return asked.result(ANSWER_S)
        except (LedgerError, TookTooLong):
            self._answers = False
            asked.cancel()
            return ""

    async def _ask(self, uid: str) -> str:
        if self._ledger is None:
            self._ledger = await client.connect(self._where.reach(), name="apportion cli names")
            self._rules = await stream.read_rules(self._ledger.wire)
        oldest = {"seq": 1, "next_by_subj": f"{SUBJECT_PREFIX}workload.{token(uid)}"}
        stored = await stream.read_stored(self._ledger.wire, oldest)
        with contextlib.suppress(EventError):
            event = stored and self._rules.read(stored.seq, stored.subject, stored.data)
            if event and isinstance(event.data, PodSubmitted | PodRejected):
                return f"{event.data.namespace}/{event.data.name}"
        return ""


class Span(NamedTuple):
    """The events to show, from `start` to `end`. Without `start`, the span begins now.

    Without `end`, the span has no end; with `closed`, it ends at the ledger's current end."""

    start: Moment | None
    end: Moment | None
    closed: bool

    async def revisions(self, ledger: JetStreamLedger) -> tuple[int, int | None]:
        """Return the first and last revision of the span; the last is None if the span has no end.

        The first revision may not exist yet. If the user gave times, print their revisions. Raises
        Wrong, LedgerError."""
        last = await ledger.last_revision()
        now = datetime.now(UTC)
        begin = last + 1
        end: int | None = None
        if self.start is not None and self.start.time is not None:
            begin = await stream.newest_stored_by(ledger.wire, self.start.time) + 1
        elif self.start is not None:
            begin = self.start.revision or 1
            if begin > last + 1:
                raise Wrong(
                    f"--from: revision {begin} is beyond the end of the ledger, {last}; leave it "
                    "out to start now"
                )
        if self.end is not None and self.end.time is not None:
            end = await stream.newest_stored_by(ledger.wire, self.end.time)
            if not end:
                asked = when(self.end.time, now)
                raise Wrong(f"--to: {asked} is before the first event; give a later time")
        elif self.end is not None:
            end = self.end.revision or last
            if end > last:
                raise Wrong(
                    f"--to: revision {end} is beyond the end of the ledger, {last}; give an "
                    "earlier one"
                )
        said = [
            f"{word} {when(moment.time, now)}: revision {revision:,}"
            for word, moment, revision in (("from", self.start, begin), ("to", self.end, end))
            if moment is not None and moment.time is not None
        ]
        if end is not None and end < begin - 1:
            raise Wrong(f"--to is before --from, which is revision {begin}; swap them")
        if said:
            say(", ".join(said), "dim", err=True)
        return begin, end


def span_of(start: str | None, end: str | None, *, closed: bool) -> Span:
    """Parse both ends of the span to show. Raises Wrong."""
    if end is None:
        return Span(_moment("--from", start), None, closed)
    if start is None:
        raise Wrong("--to requires --from; give both")
    span = Span(_moment("--from", start), _moment("--to", end), closed=True)
    before, after = (moment or Moment() for moment in span[:2])
    turned = before.revision and after.revision and after.revision < before.revision
    if turned or (before.time and after.time and after.time < before.time):
        raise Wrong(f"--to {end} is before --from {start}; swap them")
    return span


def _moment(option: str, text: str | None) -> Moment | None:
    try:
        return None if text is None else parse_moment(text, datetime.now(UTC))
    except MomentError as error:
        raise Wrong(f"{option}: {error}; {error.fix}") from None
