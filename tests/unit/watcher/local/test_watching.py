"""Tests of two watchers of the same folder. A watcher that is late must not undo newer events of
the other."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from apportion.core.ledger.fold import Change
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion.watcher.local.manifest_folder import ManifestFolder
from apportion.watcher.local.reconcile import DEFAULT, Observation
from apportion.watcher.local.watching import Watching
from apportion_schemas import (
    Configuration,
    PodGone,
    PodGroupObserved,
    PodSubmitted,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.support.ledger_of import event_of
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.polling import until

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{containers: [{{name: main}}]}}
"""


class LateFolder(ManifestFolder):
    """A manifest folder on a slow disk: each reading is held back until `clear` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="test", interval_s=0.01, clock=SystemClock())
        self.clear = asyncio.Event()
        self.clear.set()
        self.looking = 0

    async def observe(self, configuration: Configuration = DEFAULT) -> Observation:
        """Read the folder, and return the result once `clear` is set."""
        seen = await super().observe(configuration)
        self.looking += 1
        await self.clear.wait()
        return seen


class Watcher:
    """A watcher with an in-memory ledger. A test can hold back its readings of the folder."""

    def __init__(self, server: MemoryServer, folder: Path, name: str) -> None:
        self.source = LateFolder(folder)
        self._ledger, cluster = MemoryLedger(server, role="watcher", writer=name), StateFold()
        self._commit = GroupCommit(self._ledger)
        publisher = Publisher(f"watcher/{name}", SystemClock(), self._commit.append)
        self._watching = Watching(self.source, cluster.state, publisher)
        self._reader: Reader[Change] = Reader(
            self._ledger, cluster, metrics=Metrics(), on_change=self._observe
        )
        self._folded: list[Change] = []

    def _observe(self, change: Change) -> None:
        self._folded.append(change)
        self._watching.observe(change)

    def folded(self, kind: type[Payload]) -> int:
        """Return how many events of this type the watcher has folded."""
        return sum(isinstance(each.data, kind) for each in self._folded)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Watcher"]:
        """Run the watcher for the duration of a `with` block."""
        async with self._commit, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._reader.run()),
                group.create_task(self._watching.run(self._reader, self._ledger)),
            ]
            yield self
            for task in tasks:
                task.cancel()

    async def holds_a_look(self) -> None:
        """Wait until the watcher has read the folder. Hold the result back."""
        self.source.clear.clear()
        await self._looks(1)

    def answers(self) -> None:
        """Release the reading that is held back. Hold back the next one."""
        self.source.clear.set()
        self.source.clear.clear()

    async def compares(self) -> None:
        """Pass the held-back reading to the watcher, and wait until the watcher has compared it
        with the ledger."""
        self.source.clear.set()
        await self._looks(2)

    async def _looks(self, more: int) -> None:
        wanted = self.source.looking + more
        await holds(lambda: self.source.looking >= wanted, f"{more} more looks")


async def holds(check: Callable[[], bool], what: str) -> None:
    """Wait until the check returns True."""

    async def seen() -> bool:
        return check()

    await until(seen, what)


def write(folder: Path, name: str) -> None:
    """Write a manifest file and set its modification time to one minute ago."""
    half_written = folder / f"{name}.part"
    half_written.write_text(POD.format(name=name))
    now_s = half_written.stat().st_mtime
    os.utime(half_written, (now_s - 60, now_s - 60))
    half_written.rename(folder / f"{name}.yaml")


@pytest.fixture
async def watchers(tmp_path: Path) -> AsyncIterator[tuple[Watcher, Watcher]]:
    """Provide two running watchers of the same folder."""
    server = MemoryServer()
    one, two = (Watcher(server, tmp_path, name) for name in ("one", "two"))
    async with one.running(), two.running():
        yield one, two


async def test_a_pod_that_came_after_a_look_is_not_ended(
    watchers: tuple[Watcher, Watcher], tmp_path: Path
) -> None:
    """One watcher reads the folder, and then another watcher submits a new pod. The first watcher
    does not end that pod because of its outdated reading."""
    _quick, late = watchers
    await late.holds_a_look()
    write(tmp_path, "a")
    await holds(lambda: late.folded(PodSubmitted) == 1, "the other's pod")
    await late.compares()
    assert (late.folded(PodSubmitted), late.folded(PodGone)) == (1, 0)


async def test_a_pod_that_went_after_a_look_does_not_come_back(
    watchers: tuple[Watcher, Watcher], tmp_path: Path
) -> None:
    """One watcher reads the folder, and then another watcher ends a pod. The first watcher does not
    submit that pod again because of its outdated reading."""
    _quick, late = watchers
    write(tmp_path, "a")
    await holds(lambda: late.folded(PodSubmitted) == 1, "a pod")
    await late.holds_a_look()
    (tmp_path / "a.yaml").unlink()
    await holds(lambda: late.folded(PodGone) == 1, "its end")
    await late.compares()
    assert (late.folded(PodSubmitted), late.folded(PodGone)) == (1, 1)


async def test_what_others_write_does_not_make_a_look_old(tmp_path: Path) -> None:
    """If the ledger gets events about other objects after a watcher has read the folder, the
    watcher still uses the result of that reading."""
    server = MemoryServer()
    async with Watcher(server, tmp_path, "late").running() as late:
        write(tmp_path, "a")
        await late.holds_a_look()
        gang = PodGroupObserved(group="elsewhere/gang", min_available=2)
        draft = Draft(subject_of(gang), "gang", encode(event_of(gang)))
        server.append([draft], {}, role="watcher", writer="other")
        await holds(lambda: late.folded(PodGroupObserved) == 1, "the gang")
        late.answers()
        await holds(lambda: late.folded(PodSubmitted) == 1, "the pod")
