"""One run: a system of real services, a time of faults, a time to settle, and the verdict.

Invariant: a run is a function of its seed; the same seed gives the same log, byte for byte.
"""

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
from typing import NoReturn

import structlog

from apportion.agent import main as agent
from apportion.agent.fleet import SimulatedNode, numbered_nodes
from apportion.binder import main as binder
from apportion.runtime.lifecycle import Service
from apportion.scheduler import main as scheduler
from apportion.watcher import main as watcher
from apportion_schemas import DeviceUncordoned
from apportion_schemas.catalogue import SUBJECTS
from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos
from tests.simulation.loop import NothingLeft, Spinning, rest, run_virtually
from tests.simulation.markets import shared_markets
from tests.simulation.processes import Body, Process
from tests.simulation.settled import undone, unlike
from tests.simulation.snapshots import EVERY_EVENTS, Shelf
from tests.simulation.target import FailingTarget
from tests.simulation.weather import Weather
from tests.simulation.wishes import Wishes
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
QUIET_S = 40.0
"""Longer than any pause that a service makes between two tries."""
PATIENCE_S = 400.0
"""Longer than the server remembers an id; what is not done by then will never be."""
LAST_EVENTS = 12


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `trouble` is empty when nothing was wrong."""

    seed: int
    trouble: str
    events: int
    virtual_s: float
    struck: Counter[str]
    log_digest: str
    log: list[str] = field(repr=False, default_factory=list)

    def told(self) -> str:
        """The failure with its last events, and how to see it again with less around it."""
        shown = "\n".join(f"  {line[:240]}" for line in self.log[-LAST_EVENTS:])
        return (
            f"seed {self.seed}, event {self.events}, at {self.virtual_s:.3f} s:\n  {self.trouble}\n"
            f"last events:\n{shown}\n"
            f"made smaller: python -m tests.simulation --seed {self.seed} --shrink"
        )


class World:
    """The server, the processes, the users and the auditor of one run."""

    def __init__(self, weather: Weather, *, wishes_max: int) -> None:
        self.server = MemoryServer()
        self.shelf = Shelf()
        self.processes: list[Process] = []
        self.fleet: dict[str, list[str]] = {}
        self.all_well = False
        self.troubles: list[str] = []
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.auditor = Auditor(self.complain, loop.time)
        self.server.watch(self.auditor.take)
        self._weather = weather
        self._wishes_max = wishes_max
        self._chance: random.Random = weather.stream("world")
        self._wishes = Wishes(weather.stream("wishes"), pods_max=PODS_MAX)
        self._chaos = Chaos(self, weather, self.server)
        self._build()

    def complain(self, what: str) -> None:
        """Something is wrong: the run ends."""
        self.troubles.append(what)
        self._over.set()

    def wanted(self) -> set[str]:
        """The pods that users want, as `namespace/name`."""
        return set(self._wishes.wanted)

    async def run(self) -> None:
        """Faults, then peace, then the checks of peace; returns at the first trouble."""
        play = asyncio.create_task(self._play())
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({play, over}, return_when=asyncio.FIRST_COMPLETED)
        if play.done():
            play.result()
        for process in self.processes:
            process.kill()
        play.cancel()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        chance = self._chance
        for number in range(chance.randint(1, 3)):
            self._add(f"scheduler/{number}", "scheduler", _scheduler(f"s{number}"))
        target = FailingTarget(self._weather)
        for number in range(chance.randint(1, 2)):
            self._add(f"binder/{number}", "binder", lambda service: binder.body(service, target))
        for number in range(chance.randint(1, 2)):
            self._add(f"watcher/{number}", "watcher", self._watch)
        for number in range(chance.randint(2, 4)):
            specs = [chance.choice(SPECS) for _ in range(chance.choice((1, 1, 2)))]
            nodes = numbered_nodes(f"n{number}-{{}}", len(specs), specs)
            self.fleet |= {node.name: [d.id for d in node.devices] for node in nodes}
            self._add(f"agent/{number}", "agent", _agent(f"n{number}", nodes))

    def _add(self, name: str, role: str, body: Body) -> None:
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
                portions=self.auditor.portions,
            )
        )

    async def _watch(self, service: Service) -> None:
        await watcher.body(service, self._wishes)  # type: ignore[arg-type] # any Source will do

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
            self._wishes.stir()

    async def _settle(self) -> None:
        """Wait until it is quiet and all is done."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PATIENCE_S
        while loop.time() < end_s:
            await rest(QUIET_S / 4)
            if self.auditor.silent_for_s >= QUIET_S and not any(undone(self)):
                return
        left = list(undone(self))
        quiet_s = self.auditor.silent_for_s
        self.complain(
            "; ".join(left[:4]) if left else f"never quiet: last event {quiet_s:.1f} s ago"
        )

    async def _poke(self) -> None:
        """Stir every scheduler without changing anything: nothing is decided.

        The first time a pod may still be told that the reasons against it have changed since; the
        second time, too, for what a gang tries and gives up lets one be looked at that was not.
        """
        told = f"{SUBJECTS}.pending."
        for allowed in (told, told, "nothing"):
            self._chaos.say(DeviceUncordoned(device="GPU-none", by="sim", reason="poke"))
            poked = self.server.last_revision
            await rest(QUIET_S / 2)
            for record in self.server.records[poked:]:
                if record is not None and not record.subject.startswith(allowed):
                    self.complain(f"revision {record.revision} follows a poke that changed nothing")


def _scheduler(name: str) -> Body:
    lives = itertools.count(1)
    return lambda service: scheduler.body(service, name, EVERY_EVENTS, life=str(next(lives)))


def _agent(name: str, nodes: list[SimulatedNode]) -> Body:
    return lambda service: agent.body(service, name, nodes)


def _drop(*_entry: object) -> NoReturn:
    """Before anything is rendered: a traceback takes longer than the run that it is of."""
    raise structlog.DropEvent


@contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    """Keep the services' logs to themselves, or show them all."""
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


def run(
    seed: int,
    *,
    logs: bool = False,
    adjust: Callable[[Weather], None] | None = None,
    spared: frozenset[str] = frozenset(),
    wishes_max: int = WISHES[1],
) -> Outcome:
    """One whole run. `adjust` may change the weather before it begins.

    For a smaller run: `spared` kinds of fault never strike, and users have `wishes_max` wishes.
    """
    weather = Weather(seed, spared)
    if adjust is not None:
        adjust(weather)
    worlds: list[World] = []
    ended_s = 0.0

    async def main() -> None:
        nonlocal ended_s
        world = World(weather, wishes_max=wishes_max)
        worlds.append(world)
        try:
            await world.run()
        finally:
            ended_s = asyncio.get_running_loop().time()

    trouble = ""
    with _quiet(logs=logs), shared_markets():
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
        virtual_s=ended_s,
        struck=+weather.struck,
        log_digest=hashlib.sha256("\n".join(log).encode()).hexdigest(),
        log=log,
    )
