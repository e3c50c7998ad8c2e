"""Three servers: what a reader has caught up with, and whom a client turns to when one is gone."""

import asyncio
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
from tests.faults.servers import Cluster
from tests.support.nats import draft
from tests.support.polling import until

BEFORE = 50
MISSED = 4_000
TOGETHER = 200
SUBJECTS = (("apportion.v1.>",), ("apportion.v1.workload.*", "apportion.v1.pending.*"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three servers with an empty ledger."""
    made = Cluster(tmp_path)
    try:
        await made.start()
        await make_stream(made)
        yield made
    finally:
        await made.end()


async def _read(ledger: JetStreamLedger, subjects: Sequence[str]) -> int:
    """How many records a reader has when it says that it has caught up."""
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
                return False  # the servers choose a leader
            return True

        await until(done, "the append to be taken", timeout_s=30)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_reader_has_caught_up_with_the_ledger_and_not_with_a_server_behind_it(
    cluster: Cluster,
) -> None:
    """Where its consumer lives on a server that lacks records, it waits for them."""
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


@pytest.mark.timeout(120)
async def test_a_client_that_knows_one_server_turns_to_the_others(cluster: Cluster) -> None:
    """The others are named by the first, without a password: ours is sent to them, too."""
    known = cluster.servers[0]
    (url,) = (each for each in cluster.url_for("watcher").split(",") if str(known.port) in each)
    async with await jetstream.connect(url, name="writer") as ledger:
        await _append(ledger, 0, 10)
        await known.kill()
        await _append(ledger, 10, 20)
        assert await ledger.last_revision() == 20
