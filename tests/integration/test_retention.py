"""The ledger is archived and trimmed. The archive has the dropped events, and services keep
running."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.snapshots import KEPT, Snapshots
from apportion.runtime.ledger.archive import ArchiveWriter, read_archive, read_opening
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    SharesAllocated,
)
from tests.support.certificates import given_certificate
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess

pytestmark = pytest.mark.slow
FLEET = ("--simulate", "8xH100-80GB", "--nodes", "2", "--node", "n-{}")
SNAPSHOT_EVERY = 20
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: p{number}}}
spec: {{containers: [{{name: main, image: x, resources: {{limits:
  {{nvidia.com/gpu: 1, nvidia.com/gpumem: 4000}}}}}}]}}
"""


class World:
    """A ledger, a folder of manifests that its services read, and the operator's command line."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.folder = folder
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.facts = Facts(bus)

    @asynccontextmanager
    async def services(self, *verbs: str) -> AsyncIterator[dict[str, ServiceProcess]]:
        """Start new processes of the services named by `verbs`, or of all four services by default.

        Yield the processes by verb once they are ready."""
        options = {
            "agent": FLEET,
            "scheduler": ("--snapshot-every", str(SNAPSHOT_EVERY)),
            "watcher": ("--manifests", str(self.manifests), "--interval", "0.1"),
            "binder": (),
        }
        async with AsyncExitStack() as stack:
            running = {}
            for verb in verbs or tuple(options):
                url = self.bus.server.url_for(verb)
                process = ServiceProcess(verb, url, *options[verb])
                running[verb] = await stack.enter_async_context(process)
            for process in running.values():
                await process.ready()
            yield running

    def want(self, *numbers: int) -> None:
        """Write the manifests of exactly these pods, by number."""
        draft = self.folder / "draft"
        draft.write_text("---\n".join(POD.format(number=number) for number in numbers))
        draft.replace(self.manifests / "pods.yaml")

    async def snapshot_beyond(self, revision: int, *, only: bool = False) -> None:
        """Wait for a snapshot later than `revision`.

        With `only`, wait until all snapshots that schedulers have stored are later."""
        snapshots = Snapshots((await self.bus.connect("operator")).wire)

        async def there() -> bool:
            stored = await (snapshots.written() if only else snapshots.stored())
            return bool(stored) and stored[-1 if only else 0].revision > revision

        await until(there, f"a snapshot beyond revision {revision}")

    async def span(self) -> tuple[int, int]:
        """Return the first and the last revision of the stream."""
        state = (await stream.read_info((await self.bus.connect("operator")).wire)).state
        return state.first_seq, state.last_seq

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a verb as the operator, who also has bootstrap's credentials to drop events."""
        url = self.bus.server.url_for
        environ = {
            **os.environ,
            "APPORTION_NATS_URL": url("operator"),
            "APPORTION_BOOTSTRAP_NATS_URL": url("bootstrap"),
        }
        command = [sys.executable, "-m", "apportion.cli.main", *arguments]
        return await asyncio.to_thread(
            subprocess.run, command, env=environ, capture_output=True, text=True, check=False
        )

    async def json(self, *arguments: str) -> Any:
        """Return the `--json` output of a verb that must succeed."""
        done = await self.run(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    async def archive(self, name: str) -> str:
        """Archive the ledger to a file with this name, and return its path."""
        path = str(self.folder / name)
        await self.json("ledger", "archive", path)
        return path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Provide an empty ledger."""
    async with running_bus(tmp_path / "nats") as bus:
        made = World(bus, tmp_path)
        await made.facts.open()
        yield made


async def test_all_goes_on_after_the_beginning_is_dropped(world: World) -> None:
    """After a trim, services can restart from a snapshot and new pods can be submitted.

    `verify` can check the whole history from the archives and the ledger."""
    world.want(*range(30))
    async with world.services():
        await world.facts.count(SharesAllocated, 30)
        world.want(*range(20))
        await world.facts.count(PodGone, 10)
        await world.snapshot_beyond(0)
    first = await world.archive("first.jsonl")
    trimmed = await world.json("ledger", "trim", first, "--older-than", "0")
    assert trimmed["dropped"] > 20
    begins, ends = await world.span()
    assert begins == trimmed["first_revision"] == trimmed["dropped"] + 1

    async with world.services():  # each restarts, without the beginning
        for more in range(1, KEPT + 1):  # until none is kept of those before
            _, last = await world.span()
            world.want(*range(20 + 10 * more))
            await world.facts.count(SharesAllocated, 30 + 10 * more)
            await world.snapshot_beyond(last)
        await world.snapshot_beyond(ends, only=True)  # the oldest goes after the newest came
    whole = await world.json("verify", "--before", first)
    rest = await world.json("verify")
    assert (whole["first_revision"], whole["checked"]) == (1, whole["last_revision"])
    assert rest["first_revision"] > begins
    assert rest["digest"] == whole["digest"]

    second = await world.archive("second.jsonl")
    again = await world.json("ledger", "trim", second, "--older-than", "0")
    assert again["first_revision"] > ends
    both = await world.json("verify", "--before", first, "--before", second)
    assert (both["checked"], both["digest"]) == (whole["checked"], whole["digest"])
    alone = await world.json("verify", "--archive", first, "--archive", second)
    assert alone["digest"] == whole["digest"]
    gap = await world.run("verify", "--before", second)
    assert gap.returncode == 1
    assert "gap" in gap.stderr
    assert len({event.uid for event in world.facts.of(PodSubmitted)}) == 30 + 10 * KEPT


async def test_what_is_bound_and_not_answered_outlives_the_trim(world: World) -> None:
    """If a pod's binding is trimmed while its agent is down, the agent still allocates the pod.

    When the agent restarts, it finds the binding in the snapshot."""
    async with world.services("agent"):
        pass  # its nodes are known, and it is gone
    async with world.services("scheduler", "binder", "watcher"):
        world.want(0)
        await world.facts.count(PodBound, 1)
        for number in range(1, 40):
            await world.facts.write(pod(f"x{number}", ask(10_000_000)), role="watcher")
        await world.snapshot_beyond(0)
    (bound,) = [revision for revision, event in world.facts.events if type(event.data) is PodBound]
    archive = await world.archive("archive.jsonl")
    trimmed = await world.json("ledger", "trim", archive, "--older-than", "0")
    assert trimmed["first_revision"] > bound
    async with world.services("agent"):
        (answer,) = await world.facts.count(SharesAllocated, 1)
        assert answer.pod == world.facts.of(PodBound)[0].pod


async def test_nothing_is_dropped_that_is_needed(world: World, tmp_path: Path) -> None:
    """`ledger trim` refuses an altered archive, an archive that differs from the ledger, and an
    archive of another ledger. It also refuses if the ledger has no snapshot.

    It drops only archived events of at least the given age. It keeps the first unbound placement
    and all events after that one."""
    for number in range(30):
        await world.facts.write(pod(f"p{number}", ask(10_000_000)), role="watcher")
    short = await world.archive("short.jsonl")

    async def refused(archive: str, why: str, *options: str) -> None:
        done = await world.run("ledger", "trim", archive, "--older-than", "0", *options)
        assert (done.returncode, why in done.stderr) == (1, True), done.stdout + done.stderr
        assert (await world.span())[0] == 1

    await refused(short, "no usable snapshot")
    async with world.services("agent", "scheduler"):
        await world.facts.submit("wants nothing")
        await world.facts.count(PodPlaced, 1)
        await world.snapshot_beyond(0)
        whole = await world.archive("whole.jsonl")
    altered = tmp_path / "altered.jsonl"
    alter(Path(whole), altered)
    await refused(str(altered), "altered.jsonl")
    rewritten = tmp_path / "rewritten.jsonl"
    rewrite(Path(whole), rewritten)
    await refused(str(rewritten), "differs from the ledger")
    async with running_bus(tmp_path / "other") as other:
        foreign = World(other, tmp_path / "nats")
        await foreign.facts.open()
        await foreign.facts.submit("a")
        await refused(await foreign.archive("foreign.jsonl"), "belongs to the ledger created at")
    young = await world.json("ledger", "trim", whole, "--older-than", "3600")
    assert (young["dropped"], "3600 s" in young["because"]) == (0, True)
    told = await world.json("ledger", "trim", whole, "--older-than", "0", "--dry-run")
    assert (await world.span())[0] == 1
    limits = [await world.json("ledger", "trim", short, "--older-than", "0", "--dry-run"), told]
    assert [each["dropped"] for each in limits] == sorted(each["dropped"] for each in limits)
    placed = next(at for at, event in world.facts.events if type(event.data) is PodPlaced)
    assert told["dropped"] < placed


async def test_the_configuration_outlives_the_trim_for_who_reads_nothing_else(
    world: World, tmp_path: Path
) -> None:
    """`ledger trim` first saves the configuration where the webhook finds it, so a webhook that
    starts later applies it."""
    configuration = Configuration(scheduler_names=("theirs",))
    at = await world.facts.write(ConfigurationChanged(by="ada", configuration=configuration))
    async with world.services("agent", "scheduler"):
        for number in range(30):
            await world.facts.write(pod(f"p{number}", ask(10_000_000)), role="watcher")
        await world.snapshot_beyond(0)
    archive = await world.archive("archive.jsonl")
    trim = ("ledger", "trim", archive, "--older-than", "0")
    assert (await world.json(*trim))["first_revision"] > at
    _, files = given_certificate(tmp_path)
    listen = ("--listen", "127.0.0.1:0")
    url = world.bus.server.url_for("admission")
    async with ServiceProcess("admission", url, *listen, *files) as webhook:
        await webhook.ready()
        _, measured = await webhook.get("/metrics")
    assert f"apportion_admission_configuration_revision {at}.0" in measured.splitlines()


def alter(source: Path, copy: Path) -> None:
    """Copy an archive, and change one name in one line of the copy."""
    text = source.read_text(encoding="utf-8")
    copy.write_text(text.replace("p7", "p8", 1), encoding="utf-8")


def rewrite(source: Path, copy: Path) -> None:
    """Write an intact archive of the same ledger that has other records, as after a restore of the
    ledger from a backup."""
    opening = read_opening(source)
    with ArchiveWriter(copy, stream=opening.stream, created=opening.created) as writer:
        for record in read_archive(source):
            writer.add(structs.replace(record, payload=record.payload + b" "))
