"""Services on one ledger are upgraded one by one from this build to the next, and rolled back.

The next build writes `PodPlaced` with an additional field. Services write only enabled formats, and
bind each pod once. A service halts before a record that it cannot read."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import Record
from tests.support.nats import Bus, running_bus
from tests.support.next_build import LIFTED, NEXT, NOW, WRITTEN, next_build
from tests.support.polling import until
from tests.support.processes import ServiceProcess, environment

pytestmark = pytest.mark.slow

LEDGERS = Path(__file__).parents[1] / "golden" / "ledgers"
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - {{name: main, resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: 2000}}}}}}
---
"""
TOGETHER = 4
STRANDED = 12
MANIFESTS = 20
"""Beyond this many the oldest is deleted, so that the load never fills the GPUs."""
HANDED = "apportion_bindings_total{"
TELL = """\
import json, sys
from collections import Counter
from pathlib import Path
from apportion.core.audit import Auditor
from apportion.core.ledger.digest import digest
from apportion.core.ledger.rules import rules_of
from apportion.core.ledger.state import State
from apportion.runtime.ledger.archive import read_archive, read_said
from apportion_schemas import PodPlaced, decode
for name in sys.argv[1:]:
    auditor, zones = Auditor(State(rules=rules_of(read_said([Path(name)])))), Counter()
    for each in read_archive(Path(name)):
        assert not auditor.take(each.revision, each.subject, each.payload)
        data = decode(each.payload, subject=each.subject).data
        if isinstance(data, PodPlaced):
            zones[data.zone] += 1
    state = auditor.state
    print(json.dumps({"revision": state.revision, "digest": digest(state), "zones": zones}))
"""
"""A program of the next build: what it folds archives to, and what it reads in the new field."""


class Fact(NamedTuple):
    """An event as any NATS client reads it: its revision, its type's name and version, and its
    data."""

    revision: int
    name: str
    version: int
    data: dict[str, Any]


class Ledger:
    """All events in the ledger, read without the code of either build."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    async def open(self, bus: Bus) -> None:
        """Follow the ledger from the first revision."""
        await (await bus.connect("auditor")).follow(self._take)

    def _take(self, record: Record) -> None:
        told = json.loads(record.payload)
        name = told["type"].rpartition("/")[2]
        self.facts.append(Fact(record.revision, name, told["schemaversion"], told["data"]))

    def of(self, name: str, version: int = 0) -> list[Fact]:
        """Return the events of one type, optionally of one version."""
        named = (fact for fact in self.facts if fact.name == name)
        return [fact for fact in named if version in (0, fact.version)]

    @property
    def allocated(self) -> set[str]:
        """Return the names of the pods whose shares are allocated."""
        done = {fact.data["pod"] for fact in self.of("SharesAllocated")}
        submitted = (fact.data for fact in self.of("PodSubmitted"))
        return {data["name"] for data in submitted if data["uid"] in done}

    @property
    def waiting(self) -> int:
        """Return the number of submitted pods that are not allocated."""
        return len(self.of("PodSubmitted")) - len(self.of("SharesAllocated"))

    async def until(self, check: Callable[["Ledger"], object], what: str) -> None:
        """Wait until the check is true for the events read."""

        async def seen() -> object:
            return check(self)

        await until(seen, f"{what}; {Counter(fact.name for fact in self.facts)}")


class Load:
    """Submits batches of pods as manifests, and waits after each batch until the ledger has its
    pods."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger
        self._numbers = itertools.count()
        self._names = 0
        self._there: deque[tuple[Path, set[str]]] = deque()

    async def bring(self, count: int) -> None:
        """Submit this many pods in one manifest, and wait until the ledger has them."""
        names = {f"pod-{self._names + n}" for n in range(count)}
        self._names += count
        manifest = self._folder / f"{next(self._numbers)}.yaml"
        manifest.write_text("".join(POD.format(name=name) for name in sorted(names)))
        self._there.append((manifest, names))
        await self._ledger.until(
            lambda ledger: len(ledger.of("PodSubmitted")) == self._names, f"pod {self._names}"
        )
        if len(self._there) > MANIFESTS and self._there[0][1] <= self._ledger.allocated:
            self._there.popleft()[0].unlink()

    @contextlib.asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """Submit pods continuously while the `with` block runs."""
        enough = asyncio.Event()

        async def bring_on() -> None:
            while not enough.is_set():
                await self.bring(TOGETHER)

        bringing = asyncio.create_task(bring_on())
        try:
            yield
        finally:
            enough.set()
            await bringing


class System:
    """The services on one ledger, each of which runs either build."""

    def __init__(self, bus: Bus, ledger: Ledger, load: Load, newer: Path) -> None:
        self.bus = bus
        self.ledger = ledger
        self.load = load
        self.newer = newer
        self.services: dict[str, ServiceProcess] = {}

    def add(self, name: str, verb: str, *options: str) -> ServiceProcess:
        """Start a service of this build."""
        self.services[name] = ServiceProcess(verb, self.bus.server.url_for(verb), *options)
        return self.services[name]

    async def upgrade(self, name: str) -> None:
        """Stop the service with SIGTERM, and start it with the next build."""
        await self.change(name, self.newer)
        await self.services[name].ready()

    async def change(self, name: str, build: Path | None) -> None:
        """Stop the service with SIGTERM, and start it with `build` (None for this build) without
        waiting until it is ready."""
        service = self.services[name]
        if service.running:
            assert await service.stop() == 0
        service.build = build
        service.log.clear()
        await service.start()

    async def goes_on(self, name: str) -> None:
        """Wait until more pods are allocated than at the time of this call."""
        allocated = len(self.ledger.of("SharesAllocated"))
        await self.ledger.until(
            lambda ledger: len(ledger.of("SharesAllocated")) > allocated,
            f"pods to be allocated after the {name} was upgraded",
        )

    async def halted(self, name: str, *words: str) -> None:
        """Wait until the service is alive but not ready, and its reason has `words` and advises an
        upgrade."""
        await self.says(name, *words, "upgrade Apportion")

    async def says(self, name: str, *words: str) -> None:
        """Wait until the service is alive but not ready, and its reason contains all of `words`."""
        service = self.services[name]

        async def says() -> bool:
            status, body = await service.get("/readyz")
            return status == 503 and all(word in body for word in words)

        await until(says, f"{name} not to be ready and to say {words}")
        assert (await service.get("/healthz"))[0] == 200

    async def handed(self, name: str) -> None:
        """Wait until the binder `name` has received a placement from its queue."""

        async def counted() -> bool:
            _, told = await self.services[name].get("/metrics")
            counts = [line for line in told.splitlines() if line.startswith(HANDED)]
            return any(float(line.rpartition(" ")[2]) for line in counts)

        await until(counted, f"{name} to be handed a placement")

    async def settled(self) -> None:
        """Wait until every submitted pod is allocated."""
        await self.ledger.until(lambda ledger: ledger.waiting == 0, "all pods to be allocated")

    async def snapshot(self, revision: int) -> None:
        """Wait for a snapshot at this revision or later."""
        snapshots = Snapshots((await self.bus.connect("operator")).wire)

        async def stored() -> bool:
            return any(each.revision >= revision for each in await snapshots.stored())

        await until(stored, f"a snapshot of {revision} or later")


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Start every service of this build, with two schedulers and two binders, and wait until all
    are ready."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    async with running_bus(tmp_path / "nats") as bus, contextlib.AsyncExitStack() as stack:
        ledger = Ledger()
        await ledger.open(bus)
        made = System(bus, ledger, Load(folder, ledger), next_build(tmp_path / "next"))
        made.add("intake", "intake")
        made.add("agent", "agent", "--simulate", "8xH100-80GB", "--nodes", "8", "--node", "n-{}")
        made.add("watcher", "watcher", "--manifests", str(folder), "--interval", "0.3")
        for letter in "ab":
            snapshots = ("--snapshot-every", "1")
            made.add(f"scheduler {letter}", "scheduler", "--name", letter, *snapshots)
            made.add(f"binder {letter}", "binder")
        services = made.services.values()
        await asyncio.gather(*(stack.enter_async_context(each) for each in services))
        await asyncio.gather(*(each.ready(timeout_s=60) for each in services))
        yield made


async def test_services_are_upgraded_under_load_and_taken_back(system: System) -> None:
    """Upgrading readers before writers halts no service, and no order of upgrade loses a pod."""
    async with system.load.coming():
        await system.ledger.until(lambda ledger: len(ledger.of("PodBound")) > TOGETHER, "pods")
        await upgrade_the_readers(system)
        first = await upgrade_one_scheduler(system)
    await take_a_binder_back_too_late(system)
    await take_the_writers_back(system)
    nothing_was_lost(system.ledger)
    await both_builds_tell_the_same(system, first)


async def upgrade_the_readers(system: System) -> None:
    """Upgrade every service except the schedulers and one binder. The upgraded services read the
    events of the old schedulers."""
    for name in ("intake", "agent", "watcher", "binder a"):
        await system.upgrade(name)
        await system.goes_on(name)
    assert not system.ledger.of("PodPlaced", version=NEXT)
    await asyncio.gather(*(service.ready() for service in system.services.values()))


async def upgrade_one_scheduler(system: System) -> int:
    """Upgrade one scheduler, and check that services of the old build halt. Return the revision of
    the first placement in the new format."""
    await enable_what_it_writes(system)
    await system.services["scheduler a"].ready()
    await system.ledger.until(
        lambda ledger: ledger.of("PodPlaced", version=NEXT), "the new version"
    )
    first = system.ledger.of("PodPlaced", version=NEXT)[0].revision
    for name in ("scheduler b", "binder b"):
        await system.halted(name, f"halted before revision {first} on", f"schemaversion {NEXT}")
    come = len(system.ledger.of("PodSubmitted"))

    def allocated_since(ledger: Ledger) -> bool:
        since = {fact.data["name"] for fact in ledger.of("PodSubmitted")[come:][:-TOGETHER]}
        return bool(since) and since <= ledger.allocated

    await system.ledger.until(allocated_since, "pods that came after the halt to be allocated")
    assert await system.services["scheduler b"].stop() == 0
    return first


async def enable_what_it_writes(system: System) -> None:
    """Check that a scheduler of the next build keeps to the old format until the new one is
    enabled.

    Check also that `ledger enable` first names the services that would halt."""
    await system.change("scheduler a", system.newer)
    format_ = f"PodPlaced@{NEXT}"
    await system.says("scheduler a", f"this build writes {format_}, which is not enabled")
    await system.goes_on("scheduler a")
    assert not system.ledger.of("PodPlaced", version=NEXT)
    verb = ("-m", "apportion.cli.main", "ledger", "enable")
    given = ("--json", "--nats", system.bus.server.url_for("operator"))
    [wanted] = json.loads(await run(system.newer, *verb, *given))["wanted"]
    assert wanted.pop("halts") == {"binder": 1, "scheduler": 1}
    assert wanted == {"format": format_, "writer": "scheduler"}
    assert json.loads(await run(None, *verb, *given))["wanted"] == []
    await run(None, *verb, format_, *given, code=2)
    await run(system.newer, *verb, "--all", *given, code=1)
    enabled = json.loads(await run(system.newer, *verb, "--all", "--force", *given))["revisions"]
    assert list(enabled) == [format_]


async def take_a_binder_back_too_late(system: System) -> None:
    """Downgrade a binder after the next build has placed pods. Check that the old binder binds none
    of these pods, even if its snapshot includes their placements."""
    await system.settled()
    assert await system.services["binder a"].stop() == 0
    await system.load.bring(STRANDED)
    placed = len(system.ledger.of("PodSubmitted"))
    await system.ledger.until(lambda ledger: len(ledger.of("PodPlaced")) == placed, "placements")
    await system.snapshot(system.ledger.of("PodPlaced")[-1].revision)
    await system.change("binder b", None)
    await system.handed("binder b")
    said = await system.services["binder b"].get("/readyz")
    assert system.ledger.waiting == STRANDED
    await system.upgrade("binder b")
    await system.settled()
    assert said[0] == 503
    for words in ("binding stopped", f"schemaversion {NEXT}", "upgrade Apportion here"):
        assert words in said[1]


async def take_the_writers_back(system: System) -> None:
    """Downgrade the scheduler and the binder, and check that they write the old format again."""
    await system.snapshot(system.ledger.facts[-1].revision)
    for name in ("scheduler a", "binder b"):
        assert await system.services[name].stop() == 0
    for name in ("scheduler a", "binder b"):
        await system.change(name, None)
        await system.services[name].ready()
    written = len(system.ledger.of("PodPlaced", version=NOW))
    await system.load.bring(TOGETHER)
    await system.settled()
    assert len(system.ledger.of("PodPlaced", version=NOW)) == written + TOGETHER
    await system.snapshot(system.ledger.facts[-1].revision)


def nothing_was_lost(ledger: Ledger) -> None:
    """Check that every submitted pod was placed, bound and allocated exactly once."""
    came = Counter(fact.data["uid"] for fact in ledger.of("PodSubmitted"))
    assert set(came.values()) == {1}
    for name in ("PodPlaced", "PodBound", "SharesAllocated"):
        assert Counter(fact.data["pod"] for fact in ledger.of(name)) == came, name
    revisions = [fact.revision for fact in ledger.facts]
    assert revisions == list(range(1, len(revisions) + 1))


async def both_builds_tell_the_same(system: System, first: int) -> None:
    """Check that `verify` of both builds agrees on the events before revision `first`, which this
    build can read. Check that the next build can read all events and snapshots."""
    file = system.newer / "ledger.jsonl"
    url = system.bus.server.url_for("operator")
    await run(None, "-m", "apportion.cli.main", "ledger", "archive", str(file), "--nats", url)

    async def verified(build: Path | None, *options: str, code: int = 0) -> dict[str, Any]:
        verify = ("-m", "apportion.cli.main", "verify", "--json")
        found: dict[str, Any] = json.loads(await run(build, *verify, *options, code=code))
        return found

    whole = await verified(system.newer, "--nats", url)
    assert whole["ok"]
    assert whole["snapshots"]
    ours = await verified(None, "--archive", str(file), code=4)
    assert ours["last_revision"] == first - 1
    assert f"revision {first} on" in ours["unknown"]
    theirs = await verified(system.newer, "--archive", str(file), "--to", str(first - 1))
    assert ours["digest"] == theirs["digest"]
    told = json.loads(await run(system.newer, "-c", TELL, str(file)))
    assert told["digest"] == whole["digest"]
    assert told["zones"] == {
        LIFTED: len(system.ledger.of("PodPlaced", version=NOW)),
        WRITTEN: len(system.ledger.of("PodPlaced", version=NEXT)),
    }


async def test_the_next_build_folds_what_was_recorded(tmp_path: Path) -> None:
    """The next build has a newer event version, and folds recorded ledgers to the same digests."""
    ledgers = sorted(LEDGERS.glob("*.jsonl"))
    lines = (await run(next_build(tmp_path), "-c", TELL, *map(str, ledgers))).splitlines()
    for ledger, line in zip(ledgers, lines, strict=True):
        told = json.loads(line)
        assert list(told.pop("zones")) == [LIFTED]
        assert told == json.loads(ledger.with_suffix(".digest.json").read_text())


async def run(build: Path | None, *arguments: str, code: int = 0) -> str:
    """Run Python with the code of that build, and return its output. It must exit with `code`."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *arguments], env=environment(build),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout
