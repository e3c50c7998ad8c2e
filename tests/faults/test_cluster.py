"""A cluster of three NATS servers: readers that catch up, and clients that fail over."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import (
    Draft,
    DuplicateRefused,
    LedgerUnavailable,
    OutcomeUnknown,
    Record,
)
from tests.faults.rounds import make_stream
from tests.faults.servers import COUNT, Cluster
from tests.support.nats import draft
from tests.support.polling import until

BEFORE = 50
MISSED = 4_000
TOGETHER = 200
LISTENERS = ("auditor", "gateway", "operator")
SPEAKERS = ("agent", "extender", "gateway", "scheduler", "watcher")
SUBJECTS = (("apportion.v1.>",), ("apportion.v1.workload.*", "apportion.v1.pending.*"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster of three servers with an empty ledger."""
    made = Cluster(tmp_path)
    try:
        await made.start()
        await make_stream(made)
        yield made
    finally:
        await made.end()


async def _read(ledger: JetStreamLedger, subjects: Sequence[str]) -> int:
    """Read until the reader is caught up. Return the number of records received until then."""
    seen: list[Record] = []
    following = await ledger.follow(seen.append, subjects=subjects)
    await following.caught_up()
    await following.stop()
    return len(seen)


async def _append(ledger: JetStreamLedger, first: int, last: int) -> None:
    for number in range(first, last, TOGETHER):
        drafts = [draft(f"workload.{n}") for n in range(number, min(number + TOGETHER, last))]

        async def done(drafts: list[Draft] = drafts) -> bool:
            try:
                await ledger.append(drafts)
            except DuplicateRefused:
                return True
            except (LedgerUnavailable, OutcomeUnknown):
                return False  # the servers are electing a leader
            return True

        await until(done, "the append to be taken")


@pytest.mark.slow
async def test_a_reader_catches_up_with_the_ledger_not_a_server(cluster: Cluster) -> None:
    """Readers that report that they are caught up have received all records.

    This holds even if a reader is connected to a server that restarted and lacks the newest
    records."""
    writer = await jetstream.connect(cluster.url_for("watcher"), name="writer")
    reader = await jetstream.connect(cluster.url_for("operator"), name="reader")
    late = cluster.servers[2]
    async with writer, reader:
        await _append(writer, 0, BEFORE)
        await late.kill()
        await _append(writer, BEFORE, BEFORE + MISSED)
        newest = await reader.last_revision()
        await cluster.revive(late)
        read: list[int] = []
        held = 0
        while held < newest:
            read += await asyncio.gather(*(_read(reader, each) for each in SUBJECTS * 3))
            holding = await late.holds()
            held = holding.last if holding else 0
    assert set(read) == {newest}


async def test_a_client_fails_over_to_unnamed_servers(cluster: Cluster) -> None:
    """If a client's server is killed, the client connects to a server that its URL does not name.

    It got that server's address from the killed server, and logs in with its own password."""
    known = cluster.servers[0]
    (url,) = (each for each in cluster.url_for("watcher").split(",") if str(known.port) in each)
    async with await jetstream.connect(url, name="writer") as ledger:
        await _append(ledger, 0, 10)
        await known.kill()
        await _append(ledger, 10, 20)
        assert await ledger.last_revision() == 20


class Said:
    """Publishes messages on several servers, and records which listener receives them."""

    def __init__(self) -> None:
        self.speakers: list[tuple[str, JetStreamLedger]] = []
        self.heard: dict[tuple[str, int], list[bytes]] = {}

    async def hear(self, listener: JetStreamLedger, role: str, number: int) -> None:
        """Record the messages that `listener` receives, under its role and its server's number."""
        heard = self.heard[role, number] = []

        async def note(_subject: str, payload: bytes) -> None:
            heard.append(payload)

        for subject in ("apportion.beat.>", "apportion.usage.*"):
            await listener.serve(subject, note)

    async def say(self, word: bytes) -> None:
        """Publish `word` once from every speaker."""
        for number, (role, speaker) in enumerate(self.speakers):
            await speaker.publish(f"apportion.beat.{role}.x", b"%s %d" % (word, number))

    def of(self, word: bytes) -> dict[tuple[str, int], list[bytes]]:
        """Return which messages with the text `word` each listener received, by role and server."""
        return {
            at: sorted(each for each in heard if each.startswith(word))
            for at, heard in self.heard.items()
        }

    async def known(self, word: bytes) -> bool:
        """Return True if every listener has received `word` from every speaker."""
        return all(len(set(each)) == len(self.speakers) for each in self.of(word).values())

    async def all_greeted(self) -> bool:
        """Return True if each speaker's greeting reaches all listeners."""
        await self.say(b"hello")
        return await self.known(b"hello")


async def test_a_broadcast_arrives_once_on_every_server(cluster: Cluster) -> None:
    """Every listener on every server receives each message exactly once.

    With a wrong configuration, a message could reach another server in two ways and arrive twice.
    """
    said = Said()
    async with contextlib.AsyncExitStack() as stack:

        async def on(number: int, role: str) -> JetStreamLedger:
            port = str(cluster.servers[number].port)
            (url,) = (each for each in cluster.url_for(role).split(",") if port in each)
            return await stack.enter_async_context(await jetstream.connect(url, name=role))

        for role, number in itertools.product(LISTENERS, range(COUNT)):
            await said.hear(await on(number, role), role, number)
        for role, number in itertools.product(SPEAKERS, range(COUNT)):
            said.speakers.append((role, await on(number, role)))
        await until(said.all_greeted, "each server to know who listens on the others")
        await said.say(b"once")
        await said.say(b"last")
        await until(lambda: said.known(b"last"), "the last of each to be heard")
        once = sorted(b"once %d" % number for number in range(len(said.speakers)))
        for at, heard in said.of(b"once").items():
            assert heard == once, at
