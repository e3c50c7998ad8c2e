"""The stream has the settings that the ledger's guarantees need, and a wrong setting is reported
with its name."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import check_stream, connect, create_stream
from apportion.runtime.jetstream.server.embedded import EmbeddedServer
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import (
    Ledger,
    LedgerDrifted,
    LedgerError,
    LedgerFull,
    LedgerUnavailable,
)
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import read_config
from apportion.runtime.service.lifecycle import Service
from apportion.runtime.service.session import open_session
from tests.support.nats import Bus, PlainServer, draft, ignore, remake_stream, running_bus


async def test_the_stream_is_made_once_and_then_found(bus: Bus) -> None:
    """Creating the stream a second time finds the existing one and changes nothing."""
    ledger = await bus.connect("watcher")
    await ledger.append([draft()])
    boot = await bus.connect("bootstrap")
    info = await create_stream(boot)
    assert (info.state.last_seq, info.config["num_replicas"]) == (1, 1)
    assert (await check_stream(ledger)).created == info.created


async def test_the_server_writes_to_disk_before_it_acknowledges(bus: Bus) -> None:
    """The running server reports `sync_interval: always`: it writes to disk before it
    acknowledges."""
    async with aiohttp.request("GET", f"{bus.server.monitor_url}/jsz?config=true") as page:
        about = await page.json()
    assert about["config"]["sync_always"] is True


async def test_more_replicas_than_servers_is_an_error_with_the_number(tmp_path: Path) -> None:
    """Creating a stream with more replicas than servers fails, and no stream exists afterwards."""
    server = EmbeddedServer(tmp_path / "data", port=-1)
    await server.start()
    boot = await connect(server.url_for("bootstrap"), name="test")
    with pytest.raises(LedgerError, match="with 3 replicas"):
        await create_stream(boot, replicas=3)
    with pytest.raises(
        LedgerUnavailable, match=f"no stream {STREAM}; create it with the bootstrap"
    ):
        await check_stream(boot)
    await boot.close()
    await server.stop()


async def test_another_number_of_replicas_is_drift(bus: Bus) -> None:
    """A number of replicas other than the operator's setting is reported as drift."""
    with pytest.raises(LedgerDrifted, match="num_replicas is 1 on the server but must be 3"):
        await create_stream(await bus.connect("bootstrap"), replicas=3)


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[PlainServer]:
    """Provide a server on which a stream can be set up incorrectly."""
    server = PlainServer(tmp_path / "plain")
    await server.start()
    yield server
    await server.stop()


WRONG: dict[str, object] = {
    "subjects": ["apportion.>"],
    "storage": "memory",
    "retention": "interest",
    "discard": "old",
    "deny_delete": False,
    "allow_rollup_hdrs": True,
    "allow_atomic": False,
    "allow_msg_ttl": True,
    "max_age": 3_600_000_000_000,
    "max_msgs": 10,
    "max_msgs_per_subject": 1,
    "max_msg_size": 1000,
    "duplicate_window": 1_000_000_000,
    "sources": [{"name": "OTHER"}],
    "republish": {"src": ">", "dest": "elsewhere.>"},
    "subject_transform": {"src": "apportion.v1.>", "dest": "apportion.v1.x.>"},
    "sealed": True,
    "no_ack": True,
    "allow_batched": True,
}
WITH: dict[str, dict[str, object]] = {
    "max_age": {"duplicate_window": stream.WANTED["duplicate_window"]},
    "mirror": {
        "mirror": {"name": "OTHER"},
        "subjects": [],
        "allow_atomic": False,
        "duplicate_window": 0,
    },
    "discard_new_per_subject": {"discard_new_per_subject": True, "max_msgs_per_subject": 5},
    "allow_msg_counter": {"allow_msg_counter": True, "discard": "old"},
    "allow_msg_schedules": {"allow_msg_schedules": True, "discard": "old"},
    "subject_delete_marker_ttl": {"subject_delete_marker_ttl": 10**10, "allow_msg_ttl": True},
}
"""What the server takes only together with others, which are named then too."""


async def test_a_server_has_no_setting_that_nobody_has_looked_at(plain: PlainServer) -> None:
    """Apportion's list contains every stream setting of the nats-server. If a newer server adds a
    setting, this test fails."""
    ledger = await connect(plain.url, name="test")
    info = await create_stream(ledger)
    assert set(info.config) <= stream.WANTED.keys() | stream.FREE
    await ledger.close()


async def test_each_wrong_setting_of_a_real_stream_is_named(plain: PlainServer) -> None:
    """`check` names each stream setting that differs from the value on which the ledger relies."""
    assert WRONG.keys() | WITH.keys() == stream.WANTED.keys()
    ledger = await connect(plain.url, name="test")
    for setting in stream.WANTED:
        alone = {setting: WRONG[setting]} if setting in WRONG else {}
        wrong = {**stream.WANTED, "name": STREAM, **alone, **WITH.get(setting, {})}
        if setting == "sealed":  # one that is there is sealed, and not made so
            await create_stream(ledger)
            await call_api(ledger.wire, f"STREAM.UPDATE.{STREAM}", wrong)
        else:
            await remake_stream(ledger.wire, wrong)
        info = await stream.read_info(ledger.wire)
        named = {error.setting for error in stream.stream_drift(info)}
        assert f"stream {STREAM} {setting}" in named
        assert len(named) == 1 or setting not in WRONG
        with pytest.raises(LedgerDrifted, match=r"restore it, or start with a new ledger"):
            await check_stream(ledger)
        await call_api(ledger.wire, f"STREAM.DELETE.{STREAM}")
    await ledger.close()


async def test_a_service_does_not_begin_with_a_wrong_setting(plain: PlainServer) -> None:
    """If the stream drops old records, a service stops before it reads or appends anything. The
    error names the setting."""
    ledger = await connect(plain.url, name="test")
    await remake_stream(ledger.wire, {**stream.WANTED, "name": STREAM, "discard": "old"})
    config = read_config({"nats_url": plain.url}, environ={})
    with pytest.raises(LedgerDrifted) as drifted:
        async with open_session(Service("watcher", config, clock=SystemClock())):
            raise AssertionError("the session began")
    assert drifted.value.setting == f"stream {STREAM} discard"
    await ledger.close()


async def test_a_stream_without_atomic_batches_is_named_when_a_batch_is_appended(
    plain: PlainServer,
) -> None:
    """Appending a batch fails if the stream lacks atomic batches. The error names the setting."""
    ledger = await connect(plain.url, name="test")
    settings = {"name": STREAM, "subjects": ["apportion.v1.>"]}
    await call_api(ledger.wire, f"STREAM.CREATE.{STREAM}", settings)
    with pytest.raises(LedgerDrifted, match="allow_atomic is False on the server but must be True"):
        await ledger.append([draft(), draft()])
    await ledger.close()


async def test_no_stream_is_said_with_its_fix(plain: PlainServer) -> None:
    """Appending to a server without the ledger's stream fails at once as unavailable, with the
    fix."""
    ledger = await connect(plain.url, name="test")
    with pytest.raises(LedgerUnavailable, match="no service answers apportion"):
        await ledger.append([draft()])
    with pytest.raises(LedgerUnavailable, match="no stream APPORTION"):
        await ledger.follow(ignore)
    await ledger.close()


async def test_a_full_stream_refuses_whole_appends_and_keeps_what_it_has(tmp_path: Path) -> None:
    """If a batch does not fit into a full stream, none of it is stored. A smaller append that fits
    is accepted."""
    async with running_bus(tmp_path / "data", max_bytes=1_000_000) as bus:
        ledger = await bus.connect()
        big = [draft(f"workload.{n}", payload=b"x" * 100_000) for n in range(12)]
        with pytest.raises(LedgerFull, match=r"maximum bytes exceeded.*raise max_file_store"):
            await ledger.append(big)
        assert await ledger.last_revision() == 0
        assert await ledger.append(big[:9]) == list(range(1, 10))
        with pytest.raises(LedgerFull):
            await ledger.append(big[9:10])
        assert await ledger.append([draft()]) == [10]


async def _append_until_full(ledger: Ledger) -> int:
    """Append up to 50 events, and return how many were stored before the ledger was full."""
    for stored in range(50):
        try:
            await ledger.append([draft(payload=b"x" * 100_000)])
        except LedgerFull:
            return stored
    raise AssertionError("50 events of 100 kB went into 2 MB")


async def test_a_full_server_refuses_and_serves_its_readers(tmp_path: Path) -> None:
    """A server at its own store limit refuses appends, and all its events can still be read."""
    server = EmbeddedServer(tmp_path / "data", port=-1, max_store_bytes=2_000_000)
    await server.start()
    async with (
        await connect(server.url_for("bootstrap"), name="test") as boot,
        await connect(server.url_for("watcher"), name="test") as ledger,
    ):
        await create_stream(boot)
        stored = await _append_until_full(ledger)
        seen: list[int] = []
        following = await ledger.follow(lambda record: seen.append(record.revision))
        await following.caught_up()
        assert stored > 5
        assert seen == list(range(1, stored + 1))
    await server.stop()
