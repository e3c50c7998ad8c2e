"""Waiting for room, and telling what is waited for.

All of it goes to stderr, for stdout is the command's own. Invariant: a reason is told once, until
there is another one; and what keeps a moment from being seen (a ledger or gateway that restarts)
does not end the wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import click
import msgspec

from apportion.cli.exits import Unreachable
from apportion.cli.pods.append import Submitted
from apportion.cli.pods.decisions import Awaited
from apportion.cli.render.output import console, plain
from apportion.core.explain.text.event_text import shares_words
from apportion.core.explain.text.printable import escaped_json
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.starting import Started
from apportion_schemas import PodPlaced, Share

LOOK_S: Final = 5.0
"""Between two looks for commands that have ended without a word, while this one waits for room."""


class Waits(msgspec.Struct, kw_only=True):
    """What `--json` prints while there is no room."""

    pod: str
    uid: str
    waits: str


class Starts(msgspec.Struct, kw_only=True):
    """What `--json` prints just before the command starts."""

    pod: str
    uid: str
    node: str
    shares: tuple[Share, ...]
    environment: dict[str, str]
    device: str
    notes: tuple[str, ...]


class Telling:
    """What is told of one pod."""

    def __init__(self, pod: Submitted, *, as_json: bool) -> None:
        self._pod = pod
        self._as_json = as_json
        self.said = ""

    def waits(self, why: str) -> None:
        """It waits for this; said once. Nothing is said of nothing."""
        if why in {"", self.said}:
            return
        self.said = why
        pod = self._pod
        if self._as_json:
            self._write(Waits(pod=pod.full_name, uid=pod.uid, waits=why))
        else:
            self._say(f"{pod.full_name} waits: {why}")

    def last(self) -> str:
        """What it waited for last, to be put behind a sentence."""
        return f": {self.said}" if self.said else ""

    def starts(self, placed: PodPlaced, share: Started) -> None:
        """It has what it asked for."""
        pod = self._pod
        if self._as_json:
            self._write(
                Starts(
                    pod=pod.full_name,
                    uid=pod.uid,
                    node=placed.node,
                    shares=placed.shares,
                    environment=share.environment,
                    device=share.device,
                    notes=share.notes,
                )
            )
            return
        if self.said:
            self._say(f"{pod.full_name} has {shares_words(placed.shares)}")
        for note in share.notes:
            self._say(f"note: {note}")

    @staticmethod
    def _write(said: Waits | Starts) -> None:
        click.echo(escaped_json(msgspec.json.encode(said)), err=True)
        sys.stderr.flush()

    @staticmethod
    def _say(text: str) -> None:
        console(stderr=True).print(plain(text), soft_wrap=True)


async def placed(
    ledger: JetStreamLedger,
    pod: Submitted,
    telling: Telling,
    sweep: Callable[[], Awaitable[None]],
    cause: Callable[[int], Awaitable[str]],
) -> PodPlaced:
    """Wait until its placement is bound and taken, and say meanwhile what it waits for.

    `sweep` is called at first and every few seconds, to make room where it can; `cause` says what
    it waits for, after a refusal at that revision.

    Raises:
        NotFound: what `sweep` raises of that kind.
        Outdated: a newer build decides.
    """
    since = pod
    while True:
        try:
            await sweep()
            awaited = Awaited([since], lambda: None, allocated=True)
            await awaited.wait(ledger, LOOK_S)
            why = await cause(awaited.revision) if awaited.refused else ""
        except (LedgerError, Unreachable) as error:
            telling.waits(str(error))
            await asyncio.sleep(LOOK_S)
            continue
        said = awaited.decided.get(pod.uid)
        if said is not None and said.placed is not None and awaited.settled:
            return said.placed
        if said is None:
            telling.waits(telling.said or "no scheduler answers")
            continue
        if said.refused is None:
            telling.waits("it has a place, which is not bound yet")
            continue
        telling.waits(why)
        since = msgspec.structs.replace(since, revision=said.revision + 1)
