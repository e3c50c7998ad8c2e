"""If the stream or the disk is full, no pod is placed, services report the cause, and nothing is
lost."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
import yaml

from apportion.cli.client.gateway_client import Gateway
from apportion.core.answers.reads import RevisionAnswer
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    LedgerFull,
    LedgerUnavailable,
    OutcomeUnknown,
)
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import SharesAllocated
from tests.faults.disks import Disk
from tests.faults.services import Service
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until, wait_until
from tests.support.processes import ServiceProcess
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
ROOM_BYTES = 60_000
MORE_BYTES = 50_000_000
FULL = "the ledger is full, so no pod is placed"
SILENT = "the ledger does not acknowledge appends"
UNSERVED = "nats-server does not serve the ledger"
ASKS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}


@asynccontextmanager
async def services(bus: Bus) -> AsyncIterator[tuple[Service, ServiceProcess]]:
    """Yield a scheduler that is not started yet, and a running binder. An agent with room for all
    pods runs as well."""
    url = bus.server.url_for
    async with AsyncExitStack() as stack:
        fleet = ("--simulate", "8xH100-80GB", "--nodes", "5", "--node", "n-{}")
        agent = ServiceProcess("agent", url("agent"), *fleet)
        binder = ServiceProcess("binder", url("binder"))
        for each in (agent, binder):
            await stack.enter_async_context(each)
            await each.ready()
        scheduler = Service("scheduler", "scheduler", url("scheduler"))
        yield scheduler, binder
        if scheduler.running:
            await scheduler.kill()


async def submit(ledger: JetStreamLedger, first: int = 0, *, most: int = 10_000) -> list[int]:
    """Submit pods until one is refused or `most` pods are submitted. Return the revisions of the
    acknowledged pods."""
    taken: list[int] = []
    async with GroupCommit(ledger) as commit:
        publisher = Publisher("watcher/test", SystemClock(), commit.append)
        for number in range(first, first + most):
            uid = f"p{number}"
            draft = publisher.draft(pod(uid, ask(100)), event_id=f"{uid}/submitted", basis=0)
            try:
                taken += await ledger.append([draft])
            except DuplicateRefused:
                continue  # of the round before: it was appended, and the answer did not come
            except (LedgerFull, OutcomeUnknown, LedgerUnavailable):
                return taken
    return taken


async def says(service: ServiceProcess, *reasons: str) -> None:
    """Wait until the service reports that it is not ready, with one of these reasons."""

    async def said() -> bool:
        status, body = await service.get("/readyz")
        return status == 503 and any(reason in body for reason in reasons)

    await until(said, f"{service.verb} to say: {' or '.join(reasons)}")


async def full_metric(service: ServiceProcess) -> bool:
    """Return True if the metric `apportion_ledger_full` is 1."""
    _, body = await service.get("/metrics")
    return "apportion_ledger_full 1.0" in body


async def verb(bus: Bus, role: str, *arguments: str) -> str:
    """Return the output of a verb, which must exit with 0."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "apportion.cli.main", *arguments],
        env={**os.environ, "APPORTION_NATS_URL": bus.server.url_for(role)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def all_is_there(bus: Bus, taken: list[int]) -> None:
    """Check that all acknowledged pods are in the ledger, placed and allocated, and that `apportion
    verify` accepts the ledger."""
    facts = Facts(bus)
    await facts.open()
    await facts.count(SharesAllocated, len(taken))
    there = {revision for revision, _ in facts.events}
    assert there.issuperset(taken)
    assert json.loads(await verb(bus, "operator", "verify", "--json"))["ok"]


async def test_a_full_stream_stops_placing_and_goes_on_with_more_room(tmp_path: Path) -> None:
    """On a full stream the scheduler places no pods and reports why. `ledger resize` lets it
    continue."""
    async with (
        running_bus(tmp_path / "nats", max_bytes=ROOM_BYTES) as bus,
        services(bus) as (scheduler, binder),
    ):
        taken = await submit(await bus.connect("watcher"))
        assert len(taken) > 20
        async with scheduler:
            await says(scheduler, FULL)
            await until(lambda: full_metric(scheduler), "an append to be refused")
            line = await scheduler.logged("the ledger is full")
            assert "max_bytes" in str(line)
            await verb(bus, "bootstrap", "ledger", "resize", "--max-bytes", str(MORE_BYTES))
            await scheduler.ready()
            assert not await full_metric(scheduler)
            await all_is_there(bus, taken)
            await binder.ready()
            await verb(bus, "operator", "ledger", "check")


def _frozen(up: Standalone) -> str:
    """Return the gateway's reason why nothing can be placed."""
    assert up.data is not None
    gateway = json.loads((up.data / "connection.json").read_text())["gateway"]
    with closing(Gateway(gateway)) as asked:
        return str(asked.ask("revision", answer=RevisionAnswer).frozen)


def _placed(up: Standalone) -> int:
    return sum(row["phase"] == "allocated" for row in up.json("get", "pods")["items"])


def test_up_says_that_a_full_ledger_places_nothing_and_goes_on(tmp_path: Path) -> None:
    """`up` reports a full ledger, even at its start. With more room pending pods are placed without
    a restart."""
    pods = yaml.safe_dump_all(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}"},
            "spec": {"containers": [{"name": "m", "image": "x", "resources": {"limits": ASKS}}]},
        }
        for number in range(12)
    ).encode()
    options = ("--no-samples", "--fleet", "2xT4")
    with Standalone(tmp_path / "data", *options) as up:
        up.up()
        assert _frozen(up) == ""
        up.json("ledger", "resize", "--max-bytes", "16000")
        assert up.run("submit", "-f", "-", stdin=pods).returncode == 0
        wait_until(lambda: _frozen(up) == "ledger-full", "placements to freeze")
        states = {each["id"]: each["state"] for each in up.json("doctor", code=1)["checks"]}
        assert (states["placements"], states["disk"]) == ("broken", "broken")
        up.said("`apportion ledger resize`")
        assert _placed(up) < 12
    with Standalone(tmp_path / "data", "--no-samples") as up:
        up.up()
        up.said("`apportion ledger resize`")
        up.json("ledger", "resize", "--max-bytes", "-1")
        wait_until(lambda: _frozen(up) == "", "placements to go on")
        wait_until(lambda: _placed(up) == 12, "every pod to be placed")
        assert not [line for line in up.lines if "restarting it" in line]


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """When the disk is full, the server loses no acknowledged event. Once space is free and the
    server has restarted, the scheduler continues."""
    disk = Disk(tmp_path, size_mib=64)
    disk.mount()
    if not disk.can_fill:
        pytest.skip("nothing can be mounted here: run as root to fill a small disk")
    try:
        async with running_bus(disk.path / "nats") as bus, services(bus) as (scheduler, _):
            writer = await bus.connect("watcher", ack_timeout_s=3)
            first = await submit(writer, most=20)
            async with scheduler:
                facts = Facts(bus)
                await facts.open()
                await facts.count(SharesAllocated, len(first))
                scheduler.stop_short()
                taken = first + await submit(writer, len(first), most=20)
                await asyncio.to_thread(disk.fill)
                taken += await submit(writer, len(taken))
                scheduler.go_on()
                await says(scheduler, SILENT, UNSERVED)
                disk.free()
                await bus.crash()
                await bus.restart()
                await all_is_there(bus, taken)
                await scheduler.ready()
    finally:
        disk.unmount()
        shutil.rmtree(tmp_path, ignore_errors=True)
