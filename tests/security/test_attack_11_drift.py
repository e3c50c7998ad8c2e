"""Attack 11: a client with bootstrap's identity sets `max_msgs_per_subject` to 1 on the stream.

The server then keeps only the newest event of each subject. Without the guard, services check the
stream's settings only when they start, so the loss is not noticed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.runtime.jetstream.wire import STREAM, Message, Wire, call_api
from apportion.runtime.ledger.port import ALL_SUBJECTS
from apportion_schemas import PodPlaced
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, draft, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, ServiceProcess

HASTE = """
from apportion.runtime.service import soundness
soundness.LOOK_S = soundness.LOOK_AGAIN_S = 0.4
"""
"""Code that makes a service check the stream every 0.4 s instead of every half minute."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with running_bus(tmp_path / "data") as running:
        yield running


async def scheduling(bus: Bus, facts: Facts, first: str) -> ServiceProcess:
    """Start a scheduler, and return it once it has placed a pod. Its process runs the Python code
    `first` before the service starts."""
    await facts.open()
    scheduler = ServiceProcess(
        "scheduler", bus.server.url_for("scheduler"), *NO_AGENTS, first=first
    )
    await scheduler.__aenter__()
    await scheduler.ready()
    await facts.write(pod("before", ask(1000)))
    await facts.write(rack("n1", 8))
    await facts.count(PodPlaced, 1)
    return scheduler


async def told(scheduler: ServiceProcess, line: str) -> None:
    """Wait until the scheduler's metrics contain this line."""

    async def there() -> bool:
        return line in (await scheduler.get("/metrics"))[1].splitlines()

    await until(there, line)


async def stream_info(wire: Wire) -> dict[str, Any]:
    """Return the server's description of the stream."""
    info: dict[str, Any] = json.loads(await call_api(wire, f"STREAM.INFO.{STREAM}"))
    return info


async def one_for_each_subject(wire: Wire, most: int) -> dict[str, Any]:
    """Limit the stream to `most` messages per subject. Return the stream's new description."""
    info = await stream_info(wire)
    wanted = {**info["config"], "max_msgs_per_subject": most}
    await call_api(wire, f"STREAM.UPDATE.{STREAM}", wanted)
    return await stream_info(wire)


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_stream_that_drops_history_is_noticed(bus: Bus, guarded: bool) -> None:
    """A scheduler stops deciding while the stream drops history, and resumes afterwards.

    The scheduler logs the reason and is not ready in the meantime. Without the checks it stays
    ready, and places pods while events vanish."""
    facts = Facts(bus)
    scheduler = await scheduling(
        bus, facts, HASTE + without("" if guarded else "looks at the ledger")
    )
    try:
        boot = (await bus.connect("bootstrap")).wire
        await facts.write(rack("n1", 8))  # reported again: two on its subject
        broken = await one_for_each_subject(boot, 1)
        assert broken["state"]["messages"] < broken["state"]["last_seq"]
        if not guarded:
            await facts.write(pod("after", ask(1000)))
            await facts.count(PodPlaced, 2)
            assert (await scheduler.get("/readyz"))[0] == 200
            return
        found = await scheduler.logged("appends paused")
        assert re.search(r"max_msgs_per_subject\b.* 1 .* -1\b", str(found["found"]))
        status, reasons = await scheduler.get("/readyz")
        assert (status, "max_msgs_per_subject is 1" in reasons) == (503, True)
        await told(scheduler, "apportion_ledger_drifted 1.0")
        await told(scheduler, "apportion_ledger_lost_records 1.0")
        revision = await facts.write(pod("after", ask(1000)))
        await told(scheduler, f"apportion_fold_revision {revision:.1f}")
        marked = await facts.write(rack("n2", 1))
        await told(scheduler, f"apportion_fold_revision {marked:.1f}")
        assert (await stream_info(boot))["state"]["last_seq"] == marked
        await one_for_each_subject(boot, -1)
        await facts.count(PodPlaced, 2)
        await scheduler.ready()
        assert len([each for each in scheduler.log if "found" in each]) == 1
    finally:
        await scheduler.kill()


async def test_what_the_stream_sends_on_and_takes_in_is_noticed(bus: Bus) -> None:
    """A service notices if the stream republishes events, or stores messages of other subjects.

    Bootstrap may change these settings, but does not receive the republished events."""
    boot, watcher = (await bus.connect("bootstrap")).wire, await bus.connect("watcher")
    config = (await stream_info(boot))["config"]
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: Message) -> None:
        await heard.put(message.data)

    await boot.subscribe("_INBOX_bootstrap.read.>", hear)
    republish = {"src": ALL_SUBJECTS, "dest": "_INBOX_bootstrap.read.>"}
    await call_api(boot, f"STREAM.UPDATE.{STREAM}", {**config, "republish": republish})
    await watcher.append([draft(payload=b'"secret"')])
    asking, reply = f"$JS.API.STREAM.INFO.{STREAM}", "_INBOX_bootstrap.read.answer"
    await boot.publish(asking, b"", reply=reply, headers={})
    assert b"stream_info_response" in await asyncio.wait_for(heard.get(), 10)
    assert "republish" in str((await watcher.look()).drifted)
    asked, forged = "$JS.API.INFO", "apportion.v1.placement.n1"
    written = {
        "no_ack": True,
        "subjects": [ALL_SUBJECTS, asked],
        "subject_transform": {"src": asked, "dest": forged},
    }
    await call_api(boot, f"STREAM.UPDATE.{STREAM}", {**config, **written})
    await boot.publish(asked, b'{"forged": 1}', headers={})

    async def stands_there() -> bool:
        return await watcher.last_on_subject(forged) > 0

    await until(stands_there, "the event that nobody may write")
    found = str((await watcher.look()).drifted)
    assert [name for name in written if name not in found] == []
