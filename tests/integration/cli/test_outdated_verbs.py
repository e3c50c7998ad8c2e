"""Verbs of an old build stop at the first event that only a newer build can read."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.cli.client import ledger as writing
from apportion.cli.exits import OUTDATED, REFUSED, NotFound, Outdated
from apportion.cli.pods.append import Submitted
from apportion.cli.pods.decisions import Awaited
from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import Draft
from apportion.runtime.process.reach import Reach
from apportion_schemas import CATALOGUE, Event, FormatEnabled, NodeCordoned, encode, subject_of
from apportion_schemas.catalogue import BORN
from tests.support.attesting import save_attested
from tests.support.nats import Bus, running_bus
from tests.support.next_build import NEXT
from tests.support.pods import pod

TIME = "2026-01-01T00:00:00.000000Z"
NEWER = {
    "specversion": "1.0", "type": "apportion.dev/PodPlaced", "schemaversion": NEXT, "id": "x",
    "source": "scheduler", "time": TIME, "data": {},
}  # fmt: skip
REVISION = 4


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a ledger with two pods, a snapshot, and a placement that a newer build wrote."""
    async with running_bus(tmp_path / "nats") as running:
        watcher, scheduler = [await running.connect(role) for role in ("watcher", "scheduler")]
        state = State()
        for uid in "ab":
            event = Event(id=uid, source="watcher", time=TIME, data=pod(uid))
            draft = Draft(subject_of(event.data), uid, encode(event))
            fold.apply(state, (await watcher.append([draft]))[0], event)
        await save_attested(running, state)
        enabled = FormatEnabled(format="PodPlaced", version=NEXT, by="ada")
        event = Event(id="enabled", source="cli/ada", time=TIME, data=enabled)
        operator = await running.connect("operator")
        await operator.append([Draft(subject_of(enabled), "enabled", encode(event))])
        newer = Draft("apportion.v1.placement.n", "x", json.dumps(NEWER).encode())
        assert await scheduler.append([newer]) == [REVISION]
        yield running


async def run(bus: Bus, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one verb, and check that it exits normally and not by a signal."""
    environ = {**os.environ, "APPORTION_NATS_URL": bus.server.url_for("operator")}
    command = [sys.executable, "-m", "apportion.cli.main", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, check=False,
        timeout=40,
    )  # fmt: skip


async def test_verify_says_from_where_on_it_cannot(bus: Bus) -> None:
    """An old build's `verify` checks everything before the first unreadable event, and reports no
    violation."""
    done = await run(bus, "verify", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == OUTDATED
    assert (told["ok"], told["last_revision"], told.get("found")) == (False, REVISION - 1, None)
    assert f"revision {REVISION} on" in told["unknown"]
    words = (await run(bus, "verify")).stderr.replace("\n", " ")
    assert "revisions 1 to 3" in words
    assert f"revision {REVISION} on apportion.v1.placement.n" in words
    assert "upgrade Apportion here" in words


async def test_rebuild_writes_nothing(bus: Bus) -> None:
    """An old build's `rebuild` writes nothing. It cannot read the newer events, so it cannot know
    whether the ledger is incomplete."""
    done = await run(bus, "rebuild", "--kubernetes", "--reason", "test")
    assert done.returncode == OUTDATED
    assert f"schemaversion {NEXT}" in done.stderr
    assert await (await bus.connect("operator")).last_revision() == REVISION


async def test_trim_drops_nothing(bus: Bus, tmp_path: Path) -> None:
    """An old build's `ledger trim` drops nothing, because it cannot know which placements have not
    been bound to a node yet."""
    file = str(tmp_path / "ledger.jsonl")
    assert (await run(bus, "ledger", "archive", file)).returncode == 0
    done = await run(bus, "ledger", "trim", file, "--dry-run")
    assert done.returncode == REFUSED
    assert f"halted before revision {REVISION}" in done.stderr


async def test_nothing_is_written_that_is_not_enabled(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb refuses to write an event whose format no operator has enabled in the ledger, and
    names the format."""
    row = next(row for row in CATALOGUE if row.payload is NodeCordoned)
    monkeypatch.setitem(BORN, row.name, 0)
    monkeypatch.setattr(writing, "NEW", [row])
    cordon = NodeCordoned(node="n1", by="ada", reason="fan")
    reach = Reach(bus.server.url_for("operator"))
    with pytest.raises(NotFound, match=r"this build writes NodeCordoned@1, which the ledger has"):
        await writing.write(reach, cordon, basis=1)
    enabled = FormatEnabled(format="NodeCordoned", version=1, by="ada")
    assert await writing.write_all(reach, [enabled], basis=1) == [REVISION + 1]
    assert (await writing.write(reach, cordon, basis=1)).revision == REVISION + 2


async def test_who_waits_for_decisions_is_told(bus: Bus) -> None:
    """If decisions are in a newer format, a client that waits for them fails with an error that
    names the fix."""
    ledger = await bus.connect("auditor")
    awaited = Awaited([Submitted("default", "a", "a", 1)], lambda: None)
    with pytest.raises(Outdated, match=f"from revision {REVISION} on: .*upgrade Apportion here"):
        await awaited.wait(ledger, 20)
