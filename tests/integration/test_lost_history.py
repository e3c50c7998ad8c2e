"""If the ledger's server returns without the newest events, services stop and report the reason."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.jetstream.server.embedded import EmbeddedServer
from apportion.runtime.ledger.port import Draft
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion_schemas import Event, encode
from apportion_schemas.catalogue import subject_of
from tests.support.nats import Bus, running_bus
from tests.support.pods import pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess

VERBS = ("scheduler", "binder", "agent")
OPTIONS = {"agent": ("--simulate", "8xH100-80GB", "--node", "node-1")}


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a server whose store a test can replace."""
    async with running_bus(tmp_path / "data") as made:
        yield made


async def _submit(ledger: JetStreamLedger, *uids: str) -> int:
    """Append these pods, and return the revision of the last one."""
    time = rfc3339(SystemClock().now())
    events = [Event(id=uid, source="watcher/test", time=time, data=pod(uid)) for uid in uids]
    drafts = [Draft(subject_of(each.data), each.id, encode(each)) for each in events]
    return (await ledger.append(drafts))[-1]


async def _folded(service: ServiceProcess, revision: int) -> None:
    async def there() -> bool:
        _, text = await service.get("/metrics")
        told = [line for line in text.splitlines() if line.startswith("apportion_fold_revision ")]
        return bool(told) and float(told[0].split()[1]) >= revision

    await until(there, f"{service.verb} to have folded {revision}")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("written_since", [0, 40], ids=["the end moved back", "others wrote on"])
async def test_services_stop_where_the_ledger_lost_what_they_folded(
    bus: Bus, tmp_path: Path, written_since: int
) -> None:
    """Services stop when the server returns with an older store.

    They stop even if newer events have replaced the lost events."""
    store, backup = bus.data_dir / "store", tmp_path / "backup"
    async with AsyncExitStack() as running:
        services = [
            ServiceProcess(verb, bus.server.url_for(verb), *OPTIONS.get(verb, ())) for verb in VERBS
        ]
        await asyncio.gather(*map(running.enter_async_context, services))
        for service in services:
            await service.ready()
        await _submit(await bus.connect(), "a", "b")
        await bus.crash()
        shutil.copytree(store, backup)
        await bus.restart()
        revision = await _submit(await bus.connect(), *(f"lost-{n}" for n in range(5)))
        for service in services:
            await _folded(service, revision)
        await bus.crash()
        shutil.rmtree(store)
        shutil.copytree(backup, store)
        if written_since:
            await _write_elsewhere(bus, written_since)
        await bus.restart()
        for service in services:
            line = await service.logged("cannot continue")
            assert "lost events" in line["error"]
            assert await service.ended() == 78


async def _write_elsewhere(bus: Bus, count: int) -> None:
    """Append `count` other events, while the server runs on a port that no service uses."""
    elsewhere = EmbeddedServer(bus.data_dir, port=-1)
    await elsewhere.start()
    async with await connect(elsewhere.url_for("watcher"), name="elsewhere") as ledger:
        await _submit(ledger, *(f"other-{n}" for n in range(count)))
    await elsewhere.stop()
