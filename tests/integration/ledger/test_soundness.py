"""A running service checks the settings of the ledger's stream and of its own consumers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.consumers import read_info
from apportion.runtime.jetstream.stream import Look, resize
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import ALL_SUBJECTS, LedgerUnavailable, NotServed, Record
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.soundness import TROUBLES, Soundness
from tests.support.nats import PlainServer, draft
from tests.support.polling import until

ROOM_BYTES = 1_000_000


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[JetStreamLedger]:
    """Provide a ledger on a server without permissions."""
    server = PlainServer(tmp_path / "plain")
    await server.start()
    ledger = await connect(server.url, name="test")
    await create_stream(ledger)
    yield ledger
    await ledger.close()
    await server.stop()


async def deafen(ledger: JetStreamLedger, name: str) -> None:
    """Change the consumer's filter to a subject without messages. The consumer then delivers only
    heartbeats."""
    filter_subject = "apportion.v1.nothing"
    config = {**(await read_info(ledger.wire, name)).config, "filter_subject": filter_subject}
    config.pop("filter_subjects", None)
    body = {"stream_name": STREAM, "config": config, "action": "update"}
    await call_api(ledger.wire, f"CONSUMER.CREATE.{STREAM}.{name}.{filter_subject}", body)


async def names(ledger: JetStreamLedger) -> list[str]:
    """Return the names of all consumers."""
    answer = msgspec.json.decode(await call_api(ledger.wire, f"CONSUMER.NAMES.{STREAM}"))
    return list(answer["consumers"] or ())


@pytest.mark.parametrize(
    "subjects",
    [
        (ALL_SUBJECTS,),
        ("apportion.v1.workload.*",),
        ("apportion.v1.workload.*", "apportion.v1.x.*"),
    ],
    ids=["whole", "one subject", "two subjects"],
)
async def test_a_reader_that_was_made_deaf_hears_again(
    ledger: JetStreamLedger, subjects: tuple[str, ...]
) -> None:
    """A reader reports a changed filter on its consumer, replaces the consumer and misses no
    record."""
    heard: list[Record] = []
    following = await ledger.follow(heard.append, subjects=subjects)
    await ledger.append([draft()])
    await until(lambda: _true(heard), "the first record")
    assert await ledger.look() == Look()
    [name] = await names(ledger)
    await deafen(ledger, name)
    await ledger.append([draft()])
    looked = await ledger.look()
    assert looked.drifted[0].startswith(f"setting consumer {name} filter_subject")
    await until(lambda: _true(len(heard) == 2), "the second record")
    assert await ledger.look() == Look()
    await following.stop()
    assert await ledger.look() == Look()


async def test_a_queue_that_was_changed_is_named(ledger: JetStreamLedger) -> None:
    """A service reports that a work queue was changed.

    It does not replace the queue, because several workers share it."""
    subject = "apportion.v1.placement.*"
    await ledger.work_queue("binder", [subject], ack_wait_s=5, max_in_flight=10)
    assert await ledger.look() == Look()
    await deafen(ledger, "binder")
    looked = await ledger.look()
    assert "binder filter_subject" in looked.drifted[0]
    assert "'apportion.v1.nothing'" in looked.drifted[0]


async def test_what_is_held_is_not_appended(ledger: JetStreamLedger) -> None:
    """A service can put its ledger connection on hold with a reason. Appends then fail with that
    reason."""
    ledger.hold("somebody turned a screw")
    with pytest.raises(LedgerUnavailable, match="turned a screw"):
        await ledger.append([draft()])
    assert await ledger.last_revision() == 0
    ledger.hold("")
    assert await ledger.append([draft()]) == [1]


async def test_what_is_appended_makes_the_next_look_due(ledger: JetStreamLedger) -> None:
    """A service reads the ledger's free space at its start, and subtracts what it appends.

    After enough appended bytes it reads the free space from the server again."""
    await resize(ledger.wire, max_bytes=ROOM_BYTES)
    await ledger.append([draft()])
    soundness = Soundness(Metrics(), SystemClock(), get_logger("test"))
    watching = asyncio.create_task(soundness.watch(ledger))
    try:
        await until(lambda: _true(soundness.free() < 1.0), "the first look")
        payload = b"x" * int(0.4 * ROOM_BYTES)
        soundness.spend(len(payload))
        assert soundness.free() == pytest.approx(0.6, abs=0.05)
        for _ in range(2):
            await ledger.append([draft(payload=payload)])
        soundness.spend(ROOM_BYTES // 50)
        await until(lambda: _true(soundness.free() < 0.25), "the next look")
    finally:
        watching.cancel()


async def test_what_is_under_way_while_it_looks_is_not_free(ledger: JetStreamLedger) -> None:
    """Bytes appended during a check of the free space count as used, because the server may not
    have counted them."""
    await resize(ledger.wire, max_bytes=ROOM_BYTES)
    await ledger.append([draft()])
    soundness = Soundness(Metrics(), SystemClock(), get_logger("test"))
    looks: list[Look] = []

    class Counted:
        hold = staticmethod(ledger.hold)

        async def look(self) -> Look:
            looks.append(await ledger.look())
            return looks[-1]

    watching = asyncio.create_task(soundness.watch(Counted()))
    try:
        await until(lambda: _true(looks), "the first look")
        soundness.spend(ROOM_BYTES // 2)
        await until(lambda: _true(len(looks) >= 2), "the next look")
        assert soundness.free() == pytest.approx(0.5, abs=0.05)
        assert soundness.free(ROOM_BYTES // 4) == pytest.approx(0.25, abs=0.05)
    finally:
        watching.cancel()


async def test_a_ledger_that_no_server_serves(tmp_path: Path) -> None:
    """If the server has no ledger, a service is not ready until a check finds the ledger."""
    soundness = Soundness(Metrics(), SystemClock(), get_logger("test"))
    async with AsyncExitStack() as stack:
        server = PlainServer(tmp_path / "plain")
        await server.start()
        stack.push_async_callback(server.stop)
        ledger = await connect(server.url, name="test", watch=soundness.note)
        stack.push_async_callback(ledger.close)
        with pytest.raises(NotServed):
            await ledger.append([draft()])
        assert (soundness.trouble(), soundness.not_ready()) == ("unserved", [TROUBLES["unserved"]])
        await create_stream(ledger)
        watching = asyncio.create_task(soundness.watch(ledger))
        stack.callback(watching.cancel)
        await until(lambda: _true(not soundness.trouble()), "a check to find the ledger")
        assert soundness.not_ready() == []


async def _true(value: object) -> object:
    return value
