"""One simulation run: real services, a time with faults, a time to settle, and the final checks.

Invariant: a run depends only on its seed. The same seed gives the same log, byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
import structlog

from apportion.agent import main as agent
from apportion.agent.reporting.agent import RESAY_S
from apportion.core.placement import gang_turn
from apportion.intake import main as intake
from apportion.intake import taking
from apportion.runtime.files.fleets import SimulatedNode, numbered_nodes
from apportion.runtime.kube import watch as kube_watch
from apportion.scheduler import main as scheduler
from apportion_schemas import DeviceUncordoned
from apportion_schemas.catalogue import SUBJECTS
from apportion_schemas.quantities import GANG_BATCH_MAX
from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos
from tests.simulation.cluster import Cluster
from tests.simulation.kube_network import KubeAccess
from tests.simulation.loop import NothingLeft, Spinning, rest, run_virtually
from tests.simulation.price_tables import shared_price_tables
from tests.simulation.processes import SKEW_MAX_S, Body, Process
from tests.simulation.settled import undone, unlike
from tests.simulation.sides import Folder, Side
from tests.simulation.snapshots import EVERY_EVENTS, Shelf
from tests.simulation.weather import Weather
from tests.support.memory_server import MemoryServer

SPECS = (
    "1xT4",
    "2xT4",
    "3xT4",
    "2xA10",
    "1xA100-40GB",
    "2xT4+1xA10",
    "1xA100-40GB:mig",
    "2xA30-24GB:mig",
    "1xA100-40GB:mig+1xT4",
)
FAULTS_S = (20.0, 60.0)
WISHES = (15, 45)
PODS_MAX = 24
AGENT_GRACE_S = 12
"""So short that an agent which chaos keeps away is often considered gone before it returns."""
PATIENCE_S = RESAY_S + 2 * SKEW_MAX_S
"""The longest time until the system is settled. It is longer than the server remembers an id.

A node's next full inventory may come this late. A pod whose placements agents refused may wait
until a scheduler with a slow clock reaches the time that a scheduler with a fast clock wrote."""
LAST_EVENTS = 12
CHANGES_BURST = 8.0
"""A node's inventory never changes more often at once, because no node has more devices."""
PAGE = 5
"""The page size of lists. A cluster has about twenty pods, so lists have several pages."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run, with its first problem if there was one."""

    seed: int
    trouble: str
    events: int
    virtual_s: float
    struck: Counter[str]
    log_digest: str
    log: list[str] = field(repr=False, default_factory=list)

    def told(self) -> str:
        """Return the problem as text, with the last events and a command that shrinks the run."""
        shown = "\n".join(f"  {line[:240]}" for line in self.log[-LAST_EVENTS:])
        return (
            f"seed {self.seed}, event {self.events}, at {self.virtual_s:.3f} s:\n  {self.trouble}\n"
            f"last events:\n{shown}\n"
            f"made smaller: python -m tests.simulation --seed {self.seed} --shrink"
        )


class World:
    """Everything in one run: the server, the processes, the users and the auditor."""

    def __init__(self, weather: Weather, *, wishes_max: int) -> None:
        self.server = MemoryServer()
        self.shelf = Shelf()
        self.processes: list[Process] = []
        self.all_well = False
        self.ended_s = 0.0
        self.troubles: list[str] = []
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        self.auditor = Auditor(self.complain, loop.time, lambda: self.server.first_revision)
        self.server.watch(self.auditor.take)
        self._weather = weather
        self._wishes_max = wishes_max
        self._chance: random.Random = weather.stream("world")
        counts, racks = self._draw()
        self.fleet = {n.name: [d.id for d in n.devices] for rack in racks for n in rack}
        self.side: Side = self._side()
        self._chaos = Chaos(self, weather, self.server)
        self._build(counts, racks)

    def complain(self, what: str) -> None:
        """Report a problem, and end the run."""
        self.troubles.append(what)
        self._over.set()

    def _failed(self, _loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """Report an exception of the simulation itself, which would otherwise go unnoticed."""
        if "handle" in about:
            self.complain(f"the simulation failed: {about.get('exception')!r}")

    async def run(self) -> None:
        """Run the system with faults, then without, and make the final checks.

        Return at the first problem."""
        play = asyncio.create_task(self._play())
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({play, over}, return_when=asyncio.FIRST_COMPLETED)
        if play.done():
            play.result()
        for process in self.processes:
            process.kill()
        play.cancel()

    # ------------------------------------------------------------------ building

    def _draw(self) -> tuple[tuple[int, int, int], list[list[SimulatedNode]]]:
        """Choose at random how many schedulers, binders and watchers there are, and each agent's
        nodes."""
        chance = self._chance
        counts = (chance.randint(1, 3), chance.randint(1, 2), chance.randint(1, 2))
        racks = []
        for number in range(chance.randint(2, 4)):
            specs = [chance.choice(SPECS) for _ in range(chance.choice((1, 1, 2)))]
            racks.append(numbered_nodes(f"n{number}-{{}}", len(specs), specs))
        return counts, racks

    def _side(self) -> Side:
        if not self._weather.cluster:
            return Folder(self._weather, pods_max=PODS_MAX)
        cluster = Cluster(self._weather, list(self.fleet), self.auditor.books, self.complain)
        self.auditor.on_accepted = cluster.judge.accepted
        self.server.watch(cluster.heed)
        return cluster

    def _build(self, counts: tuple[int, int, int], racks: list[list[SimulatedNode]]) -> None:
        schedulers, binders, watchers = counts
        side = self.side
        for number in range(schedulers):
            self._add(f"scheduler/{number}", "scheduler", _scheduler(f"s{number}"))
        for number in range(binders):
            access = side.access(f"binder/{number}")
            self._add(f"binder/{number}", "binder", side.binder(access), access)
        for number in range(watchers):
            access = side.access(f"watcher/{number}")
            self._add(f"watcher/{number}", "watcher", side.watcher(access), access)
        for number in range(self._weather.stream("intakes").randint(1, 2)):
            self._add(f"intake/{number}", "intake", intake.body)
        for number, nodes in enumerate(racks):
            self._add(f"agent/{number}", "agent", _agent(f"n{number}", nodes))

    def _add(self, name: str, role: str, body: Body, access: KubeAccess | None = None) -> None:
        self.processes.append(
            Process(
                name,
                role,
                body,
                server=self.server,
                weather=self._weather,
                shelf=self.shelf,
                complain=self.complain,
                told=self.auditor.folded,
                shards=self.auditor.shards,
                connections=self.auditor.connections,
                access=access,
            )
        )

    # ------------------------------------------------------------------ the play

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        for process in self.processes:
            loop.call_later(self._chance.uniform(0.0, 2.0), process.start)
        span_s = self._chance.uniform(*FAULTS_S)
        chaos = asyncio.create_task(self._chaos.reign())
        users = asyncio.create_task(self._use(span_s))
        await rest(span_s)
        await users
        chaos.cancel()
        await self._chaos.mend()
        await self._settle()
        await self._poke()
        for line in unlike(self):
            self.complain(line)

    async def _use(self, span_s: float) -> None:
        count = self._chance.randint(*WISHES)
        for _ in range(min(count, self._wishes_max)):
            await rest(span_s / count * self._chance.uniform(0.0, 2.0))
            self.side.stir()

    async def _settle(self) -> None:
        """Wait until no work is open and no event arrives."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PATIENCE_S
        while loop.time() < end_s:
            await rest(10.0)
            if self.auditor.silent_for_s >= self.side.quiet_s and not any(undone(self)):
                return
        left = list(undone(self))
        quiet_s = self.auditor.silent_for_s
        self.complain(
            "; ".join(left[:4]) if left else f"never quiet: last event {quiet_s:.1f} s ago"
        )

    async def _poke(self) -> None:
        """Append three events without effect, and check that the third causes no other event.

        After the first two, a scheduler may still report a refusal of a pod. At any time a node may
        send its full inventory."""
        told = f"{SUBJECTS}.pending."
        whole = f"{SUBJECTS}.inventory."
        for allowed in (told, told, "nothing"):
            self._chaos.say(DeviceUncordoned(device="GPU-none", by="sim", reason="poke"))
            poked = self.server.last_revision
            await rest(20.0)
            for record in self.server.records[poked:]:
                if record is not None and not record.subject.startswith((allowed, whole)):
                    self.complain(f"revision {record.revision} follows a poke that changed nothing")


def _scheduler(name: str) -> Body:
    lives = itertools.count(1)
    return lambda service: scheduler.body(
        service, name, EVERY_EVENTS, life=str(next(lives)), agent_grace_s=AGENT_GRACE_S
    )


def _agent(name: str, nodes: list[SimulatedNode]) -> Body:
    return lambda service: agent.body(service, agent.Backends(name, nodes))


def _drop(*_entry: object) -> NoReturn:
    """Drop a log entry, because formatting tracebacks would take longer than the run."""
    raise structlog.DropEvent


@contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    """Suppress the services' logs until the block ends, or show them if `logs` is set."""
    before, structured = logging.root.manager.disable, structlog.get_config()
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer() if logs else _drop],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    if not logs:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        structlog.configure(**structured)


@contextmanager
def _as_here(seed: int) -> Iterator[None]:
    """Seed the services' random numbers and lower some of their limits, until the block ends.

    With an odd seed, a gang of more than two pods needs several batches."""
    before = random.getstate()
    random.seed(f"{seed}/jitter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kube_watch, "PAGE", PAGE)
        patch.setattr(taking, "CHANGES_BURST", CHANGES_BURST)
        patch.setattr(gang_turn, "GANG_BATCH_MAX", 2 if seed % 2 else GANG_BATCH_MAX)
        yield
    random.setstate(before)


def run(
    seed: int,
    *,
    logs: bool = False,
    adjust: Callable[[Weather], None] | None = None,
    spared: frozenset[str] = frozenset(),
    wishes_max: int = WISHES[1],
    cluster: bool | None = None,
) -> Outcome:
    """Run one seed, and return the outcome.

    `adjust` may change the faults first, and kinds of fault in `spared` never occur. If `cluster`
    is None, the seed determines whether there is a cluster."""
    weather = Weather(seed, spared, cluster)
    if adjust is not None:
        adjust(weather)
    worlds: list[World] = []

    async def main() -> None:
        world = World(weather, wishes_max=wishes_max)
        worlds.append(world)
        try:
            await world.run()
        finally:
            world.ended_s = asyncio.get_running_loop().time()

    trouble = ""
    with _quiet(logs=logs), shared_price_tables(), _as_here(seed):
        try:
            run_virtually(main())
        except (NothingLeft, Spinning) as stuck:
            trouble = str(stuck)
    world = worlds[0]
    log = world.auditor.log
    return Outcome(
        seed=seed,
        trouble=trouble or next(iter(world.troubles), ""),
        events=world.server.last_revision,
        virtual_s=world.ended_s,
        struck=+weather.struck,
        log_digest=hashlib.sha256("\n".join(log).encode()).hexdigest(),
        log=log,
    )
