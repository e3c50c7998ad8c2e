"""Readers of the ledger survive crashes, and notice if records are missing.

The general rules for readers are in `tests/contracts`."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from apportion.runtime.jetstream import following as runtime_following
from apportion.runtime.jetstream.client import Connection, JetStreamLedger, connect
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import (
    LedgerHole,
    LedgerUnavailable,
    OutcomeUnknown,
    Record,
    Subscription,
)
from tests.support.nats import Bus, PlainServer, Proxy, draft, ignore, remake_stream
from tests.support.polling import until


async def _at(following: Subscription, revision: int) -> None:
    async def there() -> bool:
        return following.position >= revision

    await until(there, f"the reader to be at revision {revision}")


async def test_a_server_killed_while_read_from_and_written_to_costs_no_record(bus: Bus) -> None:
    """If the server crashes three times under load, a reader still gets every acknowledged event
    exactly once and in order."""
    ledger = await bus.connect(ack_timeout_s=5)
    seen: list[Record] = []
    following = await ledger.follow(seen.append)
    stored: list[str] = []
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            batch = [draft(f"workload.{number}", key=f"{number}-{n}") for n in range(20)]
            try:
                await ledger.append(batch)
            except (OutcomeUnknown, LedgerUnavailable):
                continue
            finally:
                number += 1
            stored.extend(f"apportion.v1.workload.{number - 1}" for _ in batch)

    writing = asyncio.create_task(write())
    for _ in range(3):
        await _at(following, following.position + 200)
        await bus.crash()
        await bus.restart()
    await _at(following, following.position + 200)
    done.set()
    await writing
    await _at(following, await ledger.last_revision())
    assert [record.revision for record in seen] == list(range(1, len(seen) + 1))
    delivered = [record.subject for record in seen]
    assert [subject for subject in delivered if subject in set(stored)] == stored


async def test_a_connection_cut_in_the_middle_costs_no_record(bus: Bus, proxy: Proxy) -> None:
    """If its connection is cut, a reader still gets every record exactly once and in order."""
    writer = await bus.connect()
    await writer.append([draft(payload=b"x" * 5000) for _ in range(900)])
    ledger = await bus.connect(port=proxy.port)
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision))
    for _ in range(3):
        await proxy.cut()
        await writer.append([draft(payload=b"x" * 5000) for _ in range(100)])
    await _at(following, 1200)
    assert seen == list(range(1, 1201))


async def test_who_has_stopped_is_told_of_no_reconnection(bus: Bus) -> None:
    """A connection forgets a reader that has stopped, and no longer notifies that reader."""
    ledger = await bus.connect()
    assert isinstance(ledger.wire, Connection)
    followings = [await ledger.follow(ignore) for _ in range(3)]
    for following in followings:
        await following.caught_up()
    assert len(ledger.wire._reconnected) == 3
    for following in followings:
        await following.stop()
    assert ledger.wire._reconnected == []


# A ledger that lost events, which only a server without our rules can bring about.


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[PlainServer]:
    """Provide a server on which a test can tamper with the stream."""
    server = PlainServer(tmp_path / "plain")
    await server.start()
    yield server
    await server.stop()


async def _stream_of(server: PlainServer, events: int, **config: object) -> JetStreamLedger:
    ledger = await connect(server.url, name="test")
    settings = {"name": STREAM, "subjects": ["apportion.v1.>"], **config}
    await remake_stream(ledger.wire, settings)
    for _ in range(events):
        await ledger.append([draft()])
    return ledger


async def test_a_consumer_that_vanished_is_replaced(
    plain: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a reader receives nothing more, not even heartbeats, the client creates a new consumer for
    it."""
    monkeypatch.setattr(runtime_following, "SILENCE_S", 1.5)
    ledger = await _stream_of(plain, 3)
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision))
    await following.caught_up()
    (name,) = json.loads(await call_api(ledger.wire, f"CONSUMER.NAMES.{STREAM}"))["consumers"]
    await call_api(ledger.wire, f"CONSUMER.DELETE.{STREAM}.{name}")
    await ledger.append([draft()])
    await _at(following, 4)
    assert seen == [1, 2, 3, 4]
    await ledger.close()


async def test_a_missing_beginning_is_a_hole(plain: PlainServer) -> None:
    """Following from the start fails with LedgerHole if the oldest events were dropped."""
    ledger = await _stream_of(plain, 5, max_msgs=2)
    with pytest.raises(LedgerHole, match="oldest events were dropped") as hole:
        await ledger.follow(ignore)
    assert (hole.value.expected, hole.value.found) == (1, 4)
    following = await ledger.follow(ignore, start=4)
    await following.caught_up()
    await ledger.close()


async def test_a_purged_ledger_is_a_hole_and_not_an_empty_one(plain: PlainServer) -> None:
    """Following a purged ledger fails with LedgerHole, unlike following a ledger that was never
    written."""
    ledger = await _stream_of(plain, 5)
    await call_api(ledger.wire, f"STREAM.PURGE.{STREAM}")
    with pytest.raises(LedgerHole) as hole:
        await ledger.follow(ignore)
    assert (hole.value.expected, hole.value.found) == (1, 6)
    await ledger.close()


def _keep_store(tmp_path: Path) -> None:
    """Copy the on-disk store of the stopped server `plain`."""
    shutil.copytree(tmp_path / "plain" / "js", tmp_path / "kept")


def _put_store_back(tmp_path: Path) -> None:
    """Restore the copied store, so that `plain` starts with it."""
    shutil.rmtree(tmp_path / "plain" / "js")
    shutil.copytree(tmp_path / "kept", tmp_path / "plain" / "js")


async def test_an_end_that_moved_back_is_a_hole(plain: PlainServer, tmp_path: Path) -> None:
    """If the server returns with an older store, a reader ends with LedgerHole before it reads any
    new record."""
    ledger = await _stream_of(plain, 3)
    port = int(plain.url.rpartition(":")[2])
    await plain.stop()
    _keep_store(tmp_path)
    await plain.start(port=port)
    following = await ledger.follow(ignore)
    await ledger.append([draft() for _ in range(1)])
    await _at(following, 4)
    await plain.stop()
    _put_store_back(tmp_path)
    await plain.start(port=port)
    with pytest.raises(LedgerHole, match="moved back") as hole:
        await following.join()
    assert (hole.value.expected, hole.value.found) == (4, 3)
    await ledger.close()


async def test_an_auditor_goes_on_where_the_copy_lost_its_end(bus: Bus) -> None:
    """A reader of the auditors' copy misses no record, even if the copy lost its last records in a
    crash."""
    writer, auditor = await bus.connect("watcher"), await bus.connect("auditor")
    seen: list[int] = []
    following = await auditor.follow(lambda record: seen.append(record.revision))
    await writer.append([draft()])
    await _at(following, 1)
    copy, kept = _copy_of(bus), bus.data_dir / "kept"
    await bus.crash()
    shutil.copytree(copy, kept)
    await bus.restart()
    await writer.append([draft() for _ in range(3)])
    await _at(following, 4)
    await bus.crash()
    shutil.rmtree(copy)
    shutil.copytree(kept, copy)
    await bus.restart()
    await writer.append([draft()])
    await _at(following, 5)
    assert seen == [1, 2, 3, 4, 5]


def _copy_of(bus: Bus) -> Path:
    """Return the folder in which the server stores the auditors' copy."""
    [found] = bus.data_dir.rglob("AUDIT/streams")
    return found


async def test_another_record_in_the_place_of_the_last_one_is_a_hole(
    plain: PlainServer, tmp_path: Path
) -> None:
    """If an older copy replaces the server's store, and other events are appended to it, a reader
    ends with LedgerHole. It does not mix the two histories."""
    ledger = await _stream_of(plain, 3)
    port = int(plain.url.rpartition(":")[2])
    await plain.stop()
    _keep_store(tmp_path)
    await plain.start(port=port)
    seen: list[Record] = []
    following = await ledger.follow(seen.append)
    await ledger.append([draft(payload=b"first")])
    await _at(following, 4)
    await plain.stop()
    _put_store_back(tmp_path)
    await plain.start()  # where the reader does not look yet
    async with await connect(plain.url, name="other") as other:
        for payload in (b"second", b"third"):
            await other.append([draft(payload=payload)])
    await plain.stop()
    await plain.start(port=port)
    with pytest.raises(LedgerHole, match="missing or was replaced") as hole:
        await following.join()
    assert (hole.value.expected, hole.value.found) == (4, 4)
    assert [record.payload for record in seen[3:]] == [b"first"]
    await ledger.close()


async def test_a_stream_made_anew_is_a_hole(plain: PlainServer) -> None:
    """If the stream is deleted and created again, a reader ends with LedgerHole, however many
    events the new stream has."""
    ledger = await _stream_of(plain, 3)
    following = await ledger.follow(ignore)
    await following.caught_up()
    await call_api(ledger.wire, f"STREAM.DELETE.{STREAM}")
    await (await _stream_of(plain, 5)).close()
    port = int(plain.url.rpartition(":")[2])
    await plain.stop()
    await plain.start(port=port)
    with pytest.raises(LedgerHole, match="was recreated"):
        await following.join()
    await ledger.close()


async def test_records_are_small_and_frozen() -> None:
    """A record is small and immutable, so a reader can keep it."""
    record = Record(1, "s", b"p")
    with pytest.raises(AttributeError):
        record.revision = 2  # type: ignore[misc]
    assert msgspec.structs.asdict(record) == {"revision": 1, "subject": "s", "payload": b"p"}
