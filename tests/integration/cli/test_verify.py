"""`apportion verify` and `ledger archive` on a real ledger that real services wrote."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.core.ledger.snapshot import restore, take
from apportion.runtime.jetstream.object_store import Bucket
from apportion.runtime.jetstream.snapshots import BUCKET
from apportion.runtime.ledger.archive import read_archive
from apportion.runtime.ledger.port import Draft
from apportion_schemas import SharesAllocated
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess

PODS = 30
AGREEMENT = Path(__file__).parents[2] / "golden" / "ledgers" / "v1-agreement.jsonl"


class Verb:
    """Runs verbs of the command line against one ledger."""

    def __init__(self, bus: Bus) -> None:
        self.environ = {**os.environ, "APPORTION_NATS_URL": bus.server.url_for("operator")}

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one verb and return its exit code and output."""
        command = [sys.executable, "-m", "apportion.cli.main", *arguments]
        return await asyncio.to_thread(
            subprocess.run, command, env=self.environ, capture_output=True, text=True, check=False
        )

    async def verify(self, *arguments: str, code: int) -> Any:
        """Return the parsed output of `verify --json`."""
        done = await self.run("verify", "--json", *arguments)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a ledger that an agent, a scheduler and a binder have written, with snapshots."""
    async with running_bus(tmp_path / "nats") as running:
        facts = Facts(running)
        await facts.open()
        for data in (pod(f"p{n}", ask(1000)) for n in range(PODS)):
            payload_id = f"{data.uid}/submitted"
            await facts.write(data, event_id=payload_id, role="watcher")
        url = running.server.url_for
        agent = ("--simulate", "4xA100-40GB:mig+2xT4", "--nodes", "2", "--node", "node-{}")
        async with (
            ServiceProcess("agent", url("agent"), *agent),
            ServiceProcess("scheduler", url("scheduler"), "--snapshot-every", "20"),
            ServiceProcess("binder", url("binder")),
        ):
            await facts.count(SharesAllocated, PODS)
            bucket = Bucket((await running.connect("scheduler")).wire, BUCKET)

            async def stored() -> bool:
                return any(int(each.metadata["revision"]) > PODS for each in await bucket.entries())

            await until(stored, "a snapshot of more than the pods")
        yield running


@pytest.mark.slow
async def test_a_real_ledger_holds_until_somebody_writes_what_is_not_his(
    bus: Bus, tmp_path: Path
) -> None:
    """`verify` accepts a real ledger and its archive. It reports an event by the wrong writer, an
    altered file and a bad snapshot."""
    verb = Verb(bus)
    # The pen of the tests signs as a test; that, and nothing else, is not as it must be.
    told = await verb.verify(code=1)
    assert told["found"] == {"owner": PODS}
    assert told["snapshots"]
    told = await verb.verify("--from", str(PODS + 1), code=0)
    assert told["checked"] == told["last_revision"] - PODS
    last = told["last_revision"]

    file = tmp_path / "ledger.jsonl"
    written = json.loads((await verb.run("ledger", "archive", str(file), "--json")).stdout)
    assert written["revisions"] == last == sum(1 for _ in read_archive(file))
    again = await verb.run("ledger", "archive", str(file))
    assert again.returncode == 1
    assert "already exists" in again.stderr
    archived = await verb.verify("--archive", str(file), "--from", str(PODS + 1), code=0)
    assert archived["digest"] == told["digest"]
    words = await verb.run("verify", "--archive", str(file), "--from", str(PODS + 1))
    assert f"revisions {PODS + 1} to {last}" in words.stdout
    file.write_bytes(file.read_bytes().replace(b"A100", b"H100", 1))
    altered = await verb.verify("--archive", str(file), code=1)
    assert altered["found"]["archive"] == 1

    await plant_bad_snapshot(bus)
    told = await verb.verify("--from", str(PODS + 1), code=1)
    assert "snapshot" in told["found"]

    rogue = await bus.connect("scheduler")
    (revision,) = await rogue.append([Draft("apportion.v1.placement.node-1", "rogue", b"{}")])
    told = await verb.verify("--from", str(last + 1), code=1)
    first = told["violations"][0]
    assert (first["revision"], first["check"]) == (revision, "schema")
    words = await verb.run("verify", "--from", str(last + 1))
    assert f"first violation at revision {revision}\n" in words.stderr


async def plant_bad_snapshot(bus: Bus) -> None:
    """Store a snapshot that can be read, but whose state contradicts the ledger."""
    bucket = Bucket((await bus.connect("scheduler")).wire, BUCKET)
    entry = max(await bucket.entries(), key=lambda each: each.name)
    state = restore(await bucket.get(entry, size_max=1 << 30))
    state.released_count += 1
    await bucket.put(entry.name, entry.nuid + "x", [take(state)], entry.metadata)


async def test_a_range_that_is_not_there(tmp_path: Path) -> None:
    """`verify` rejects a range that is reversed or ends after the newest event. It accepts an empty
    ledger."""
    async with running_bus(tmp_path / "nats") as bus:
        verb = Verb(bus)
        assert (await verb.verify(code=0))["checked"] == 0
        beyond = await verb.run("verify", "--to", "9")
        assert beyond.returncode == 2
        assert "--to: revision 9 is beyond the end of the ledger, 0\n" in beyond.stderr
        assert (await verb.run("verify", "--from", "3", "--to", "2")).returncode == 2


def resource_limited(verb: Verb, file: Path) -> None:
    """Check that `ledger archive` fails cleanly when files cannot grow, as on a full disk."""
    command = f"ulimit -f 16 && exec {sys.executable} -m apportion.cli.main ledger archive {file}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=verb.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "cannot write the archive" in done.stderr
    assert list(file.parent.glob("*.jsonl*")) == []


async def test_a_full_disk_leaves_no_half_archive(tmp_path: Path) -> None:
    """On a full disk `ledger archive` fails, removes its unfinished file and leaves no file under
    the archive's name."""
    async with running_bus(tmp_path / "nats") as bus:
        verb = Verb(bus)
        facts = Facts(bus)
        await facts.open()
        await facts.submit(*(f"p{n}" for n in range(500)))
        await asyncio.to_thread(resource_limited, verb, tmp_path / "ledger.jsonl")


def test_where_cluster_and_ledger_differed_is_told() -> None:
    """`verify` reports the recorded differences between cluster and ledger, but does not count them
    as violations."""
    command = [sys.executable, "-m", "apportion.cli.main", "verify", "--archive", str(AGREEMENT)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "annotation 1, gone 1" in said
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["differences"] == {"annotation": 1, "gone": 1}
