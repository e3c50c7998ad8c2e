"""A fuzz test: attackers with stolen keys, and a hostile container, try everything they can.

    python -m tests.security.fuzz --seconds 3600 --seed 1

It runs a real nats-server, real services, and pods that start and end. The attackers are separate
processes with the keys of agents and an auditor (`tests.security.attacker`). A container attacks
its node's agent (`tests.security.tenants`). For a quarter of the time, all attackers except the
container are suspended. At the end the ledger is filled to a small limit, and the limit is lifted.

It prints the results as JSON, with each violated limit under `broken`; the exit code is then 1. The
limits:

- `apportion verify` passes, and no other node's inventory has changed.
- Every pod is allocated, and users get connections.
- Services are ready, and not ready while the ledger is full. The reserve of the ledger is kept.
- The median time from a pod to its placement is at most twice the time without attackers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from click import echo

from apportion.core.ledger.state import State
from apportion.intake.taking import RESERVE
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.ledger.port import Draft, LedgerError, LedgerFull, Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion_schemas import (
    AllocationFailed,
    DeviceConstraints,
    DeviceHealthChanged,
    Event,
    NodeReported,
    NodeSilent,
    PodGone,
    PodPlaced,
    SharesAllocated,
    UsageRecorded,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.envelope import EventError
from tests.security.attacked import AGENT, AUDITOR, FLOODER, FLOODERS, OF_NAMED_NODES, attacked
from tests.security.tenants import NODE as TENANTS
from tests.simulation.hostile import NODE
from tests.support.nats import Bus
from tests.support.pods import ask, pod, shape
from tests.support.polling import until
from tests.support.processes import ServiceProcess

CLOCK: Final = SystemClock()
SLOWER: Final = 2.0
SLOWER_THAN: Final = "placements take at most twice the median"
NOISE_MS: Final = 20.0
"""The median may always rise by this much, because other load on the machine can double it."""
SERVER_MIB_MAX: Final = 3_400
"""The limit of nats-server's memory, which is a little less than GOMEMLIMIT in the chart."""
KEPT: Final = 0.8
"""The fraction of the reserve that must stay free. A second intake may use the rest by race."""
ROOM_BYTES: Final = 8 << 20
"""Space beyond the reserve, which a stolen key can fill."""
WANTS: Final = shape(ask(1000, cores=1), devices=DeviceConstraints(use_types=("H100",)))
TURN_S: Final = 60.0
QUIET: Final = 0.25
"""The fraction of each turn in which the attackers are suspended."""
PODS_EACH_S: Final = 5.0
LIVE_MAX: Final = 150
NODES: Final = 8
SETTLE_S: Final = 30.0
ENOUGH: Final = 50
"""The number of permitted and of forbidden attempts after which an attacker may be ended."""


def say(text: str) -> None:
    """Report progress to the person who runs the fuzz."""
    echo(text, err=True)


class Watched:
    """Reads the ledger during the fuzz, and records every change that attackers must not cause."""

    def __init__(self) -> None:
        self.fold = StateFold(quiet=True)
        self.placed: dict[str, float] = {}
        self.allocated: set[str] = set()
        self.wrong: list[str] = []
        self.recorded = 0
        self.counts: Counter[str] = Counter()
        self.attacked = False

    @property
    def state(self) -> State:
        return self.fold.state

    def take(self, record: Record) -> None:
        """Fold the next record, and record any change that attackers must not cause."""
        try:
            event = decode(record.payload, subject=record.subject)
        except EventError as error:
            self._complain(f"revision {record.revision}: {error}")
            self.fold.refuse(record, str(error))
            return
        change = self.fold.apply(record, event)
        self._look(record, event, refused=change.refused)

    def _look(self, record: Record, event: Event, *, refused: str) -> None:
        data = event.data
        self.counts[type(data).__name__] += 1
        if isinstance(data, PodPlaced):
            self.placed.setdefault(data.pod, time.monotonic())
        if isinstance(data, SharesAllocated) and not refused:
            self.allocated.add(data.pod)
        node = getattr(data, "node", "")
        hurt = (NodeReported, DeviceHealthChanged, AllocationFailed, NodeSilent)
        self.recorded += isinstance(data, UsageRecorded) and node == TENANTS and bool(data.shares)
        if self.attacked and node not in (NODE, TENANTS, *FLOODERS) and isinstance(data, hurt):
            self._complain(f"revision {record.revision}: {type(data).__name__} of {node}")
        if event.source == f"agent/{NODE}" and node != NODE:
            self._complain(f"revision {record.revision}: {NODE} spoke of {node}")
        if isinstance(data, NodeReported) and node == NODE and data.devices:
            self._complain(f"revision {record.revision}: {NODE} has cards that are made up")

    def _complain(self, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(what)


class Load:
    """Submits pods at a steady rate. When too many pods exist, it ends the oldest."""

    def __init__(self, bus: Bus, watched: Watched) -> None:
        self._bus = bus
        self._watched = watched
        self._live: deque[str] = deque()
        self._came = 0
        self.came_at: dict[str, float] = {}
        self.failed: list[str] = []
        self._pen: JetStreamLedger | None = None

    async def come(self, seconds: float) -> list[str]:
        """Submit pods for this many seconds, and return their uids."""
        pen = self._pen = self._pen or await self._bus.connect("watcher")
        end = time.monotonic() + seconds
        came: list[str] = []
        said = time.monotonic()
        while time.monotonic() < end:
            uid = f"fuzz-{self._came:07}"
            self._came += 1
            self.came_at[uid] = time.monotonic()
            try:
                await pen.append([_draft(pod(uid, shape=WANTS), f"{uid}/submitted")])
            except LedgerError as error:
                self.failed.append(str(error))
            came.append(uid)
            self._live.append(uid)
            if len(self._live) > LIVE_MAX:
                gone = self._live.popleft()
                await pen.append([_draft(PodGone(uid=gone, reason="ended"), f"{gone}/gone")])
            if time.monotonic() - said > 10.0:
                said = time.monotonic()
                left = end - said
                say(f"{len(came)} pods, {self.median_ms(came):.1f} ms, {left:.0f} s left")
            await CLOCK.pause(1 / PODS_EACH_S)
        return came

    def median_ms(self, uids: list[str]) -> float:
        """Return the median time in milliseconds from a pod's submission to its placement."""
        placed = self._watched.placed
        waits = [placed[uid] - self.came_at[uid] for uid in uids if uid in placed]
        return 1000 * statistics.median(waits) if waits else float("inf")

    def missing(self, uids: list[str]) -> list[str]:
        """Return the pods that were not allocated. If there are more than 20, return only the last
        20."""
        return [uid for uid in uids if uid not in self._watched.allocated][-20:]

    async def not_placed(self, uids: list[str]) -> list[str]:
        """Wait for a grace period, and return the pods that are still not placed."""

        async def placed() -> bool:
            return self._watched.placed.keys() >= set(uids)

        with contextlib.suppress(AssertionError):
            await until(placed, "pods to be placed", timeout_s=SETTLE_S)
        return [uid for uid in uids if uid not in self._watched.placed]

    async def done(self, uids: list[str]) -> None:
        """Wait until the last 20 of these pods are allocated, or until SETTLE_S seconds have
        passed."""

        async def allocated() -> bool:
            return self._watched.allocated.issuperset(uids[-20:])

        with contextlib.suppress(
            AssertionError
        ):  # those that are not ready are reported at the end
            await until(allocated, "the last pods", timeout_s=SETTLE_S)


def _draft(data: Any, identity: str) -> Draft:
    event = Event(id=identity, source="watcher", time=rfc3339(CLOCK.now()), data=data)
    return Draft(subject_of(data), identity, encode(event))


async def play(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run attackers against a cluster once, and return the results."""
    async with attacked(folder, users=OF_NAMED_NODES) as bus, contextlib.AsyncExitStack() as stack:
        watched = Watched()
        reader = await bus.connect("gateway")
        await reader.follow(watched.take)
        services = await _start(bus, stack)
        load = Load(bus, watched)
        attackers = Attackers(bus, seed)
        await load.done(await load.come(5.0))
        watched.attacked = True
        found: dict[str, Any] = {}
        try:
            await attackers.begin()
            quiet, during = await _turns(bus, load, attackers, seconds, found)
            await load.done(during)
        finally:
            found["attacks"] = await attackers.end()
        found |= _found(watched, load, quiet, during)
        found["unready"] = await _unready(services)
        say(json.dumps(found))
        found["full_ledger"] = await _filled(bus, services, load, seed)
        found["not_allocated"] += load.missing(found["full_ledger"].pop("pods"))
        found["not_submitted"] = load.failed[:5]
        found["unready_after"] = await _unready(services)
        found["refused_by_intakes"] = await _refused(services)
        found["verify"] = await _verify(bus)
    found["seed"], found["seconds"] = seed, seconds
    found["broken"] = _broken(found)
    found["ok"] = not found["broken"]
    return found


async def _turns(
    bus: Bus, load: Load, attackers: Attackers, seconds: float, found: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Submit pods while the attackers are suspended and while they are active, in turns.

    Return the pods of the quiet periods and those of the attacks."""
    turns = max(2, round(seconds / TURN_S))
    each_s = seconds / turns
    quiet: list[str] = []
    during: list[str] = []
    found["people_refused"], found["server_mib"] = [], 0
    people: list[asyncio.Task[list[str]]] = []
    for turn in range(turns):
        medians = load.median_ms(quiet), load.median_ms(during)
        say(f"turn {turn + 1} of {turns}; medians without and with attackers, in ms: {medians}")
        quiet += await load.come(QUIET * each_s)
        async with attackers.at_work():
            people.append(asyncio.create_task(_people(bus)))
            during += await load.come((1 - QUIET) * each_s)
            found["server_mib"] = max(found["server_mib"], _resident_mib(bus.server.pid))
    async with attackers.at_work():
        while not attackers.did_enough():
            during += await load.come(1.0)  # the machine was suspended
        for refused in await asyncio.gather(*people):
            found["people_refused"] += refused
    return quiet, during


async def _people(bus: Bus) -> list[str]:
    """Connect as an operator, and run `apportion ledger check`. Return the errors."""
    await CLOCK.pause(4.0)
    refused = []
    try:
        ledger = await connect(bus.server.url_for("operator"), name="a person", timeout_s=30)
        await ledger.last_revision()
        await ledger.close()
    except LedgerError as error:
        refused.append(str(error))
    code, _, errors = await _verb(bus, "operator", "ledger", "check")
    return refused + ([errors] if code else [])


def _resident_mib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


async def _filled(
    bus: Bus, services: dict[str, ServiceProcess], load: Load, seed: int
) -> dict[str, Any]:
    """Let an agent's stolen key and then other writers fill a ledger. Return the results."""
    wire = (await bus.connect("bootstrap")).wire
    used = (await stream.read_info(wire)).state.bytes
    most = int((used + ROOM_BYTES) / (1 - RESERVE))
    say(f"a ledger of {most >> 20} MiB, and a stolen key that fills it")
    await stream.resize(wire, max_bytes=most)
    await _each(services, "intake", "to see the limit", _sees_limit)
    attackers = Attackers(bus, seed, {"flood": ("--node", FLOODERS[1])})
    await attackers.begin()
    try:
        async with attackers.at_work():
            with contextlib.suppress(AssertionError):
                await until(attackers.held_back, "the flood to be held back")
            await CLOCK.pause(10.0)
            free = (await stream.read_info(wire)).free
            came = await load.come(5.0)
    finally:
        deeds = await attackers.end()
    found: dict[str, Any] = {"attack": deeds, "free": free}
    found["not_placed"] = await load.not_placed(came)
    say("and now a full ledger")
    pen = await bus.connect("watcher")
    for labels in ({f"l{each}": "x" * 1_000 for each in range(60)}, {}):
        with contextlib.suppress(LedgerFull):
            for number in range(10_000):
                uid = f"filler-{len(labels)}-{number}"
                filler = pod(uid, shape=shape(), labels=labels, gates=("never",))
                await pen.append([_draft(filler, f"{uid}/submitted")])
    said = await asyncio.gather(*map(_says_full, services.values()))
    found["ready_when_full"] = [name for name, full in zip(services, said, strict=True) if not full]
    say("room again")
    await stream.resize(wire, max_bytes=-1)
    found["unready_with_room"] = await _unready(services)
    came += await load.come(5.0)
    await load.done(came)
    return found | {"pods": came}


async def _each(services: dict[str, ServiceProcess], verb: str, what: str, check: Any) -> None:
    for service in services.values():
        if service.verb == verb:
            await until(functools.partial(check, service), what, interval_s=0.5)


async def _sees_limit(service: ServiceProcess) -> bool:
    _, told = await service.get("/metrics")
    return "apportion_ledger_free_ratio 1.0" not in told.splitlines()


async def _says_full(service: ServiceProcess) -> bool:
    async def said() -> bool:
        status, body = await service.get("/readyz")
        return status == HTTPStatus.SERVICE_UNAVAILABLE and "the ledger is full" in body

    with contextlib.suppress(AssertionError):
        return await until(said, "a service to say so", interval_s=0.5)
    return False


class Attackers:
    """Attacking processes, which are suspended until a test lets them attack."""

    def __init__(
        self, bus: Bus, seed: int, which: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._bus = bus
        self._seed = seed
        self._which = which or {
            "agent": (), "auditor": (), "flood": ("--node", FLOODERS[0]), "tenants": ()
        }  # fmt: skip
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._connections = Counter[str]()

    async def begin(self) -> None:
        """Start all attacking processes, and suspend them."""
        for role, options in self._which.items():
            self._processes[role] = await self._start(role, *options)
        for role in self._which:
            while not self._told(role):
                await CLOCK.pause(0.2)
                if self._processes[role].returncode is not None:
                    return
        self._signal(signal.SIGSTOP)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Let all attackers run during the block. If agents attack, one more attacker opens many
        connections."""
        self._signal(signal.SIGCONT)
        taking = await self._start("connections") if "agent" in self._which else None
        try:
            yield
        finally:
            if taking is not None:
                taking.kill()
                await taking.wait()
                self._connections.update(self._told("connections"))
                self._connections["most"] = max(
                    self._connections["most"], self._told("connections").get("open", 0)
                )
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for role, process in self._processes.items():
            if role != "tenants" and process.returncode is None:
                process.send_signal(number)

    async def _start(self, role: str, *options: str) -> asyncio.subprocess.Process:
        url = self._bus.server.url_for
        names = {"auditor": AUDITOR.name, "flood": FLOODER.name}
        environment = {**os.environ, "APPORTION_NATS_URL": url(names.get(role, AGENT.name))}
        environment["APPORTION_AUDITOR_URL"] = url(AUDITOR.name)
        command = ["-m", "tests.security.attacker", role]
        if role == "tenants":
            command = ["-m", "tests.security.tenants"]
            environment |= {
                f"APPORTION_{each.upper()}_URL": url(each)
                for each in ("agent", "watcher", "gateway")
            }
        told, log = self._file(role, "json"), self._file(role, "log")
        with told.open("wb") as out, log.open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable, *command, "--seed", str(self._seed), *options,
                env=environment, stdout=out, stderr=errors,
            )  # fmt: skip

    def _file(self, role: str, kind: str) -> Path:
        return self._bus.data_dir / f"{role}.{kind}"

    def did_enough(self) -> bool:
        """Return True if every attacker has ended or has made enough attempts."""
        return all(
            self._processes[role].returncode is not None
            or all(self._told(role).get(deed, 0) > ENOUGH for deed in ("permitted", "forbidden"))
            for role in ("agent", "auditor")
        ) and (self._processes["tenants"].returncode is not None or self._lives() > 0)

    def _lives(self) -> int:
        return int(self._told("tenants").get("lives", 0))

    async def held_back(self) -> bool:
        """Return True once intakes have told the flooding attacker to try again later."""
        return bool(self._told("flood").get("again"))

    def _told(self, role: str) -> dict[str, Any]:
        """Return the attacker's newest report of its actions, which is a line of JSON."""
        lines = self._file(role, "json").read_text("utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        did: dict[str, Any] = json.loads(whole[-1]) if whole else {}
        return did

    async def end(self) -> dict[str, Any]:
        """End all attackers and return their reports."""
        found: dict[str, Any] = {}
        for role, process in self._processes.items():
            alive = process.returncode is None
            if alive:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM if role == "tenants" else signal.SIGKILL)
            await process.wait()
            found[role] = self._told(role)
            if not alive:
                log = self._file(role, "log").read_text("utf-8", "replace")
                found[role]["died"] = log.splitlines()[-1:]
        if self._connections:
            found["connections"] = dict(self._connections)
        return found


async def _start(bus: Bus, stack: contextlib.AsyncExitStack) -> dict[str, ServiceProcess]:
    fleet = ("--simulate", "8xH100-80GB", "--nodes", str(NODES), "--node", "n-{}")
    wanted: dict[str, tuple[str, ...]] = {
        "intake 1": ("intake",),
        "intake 2": ("intake",),
        "scheduler 1": ("scheduler", "--name", "one"),
        "scheduler 2": ("scheduler", "--name", "two"),
        "binder": ("binder",),
        "agent": ("agent", *fleet),
    }
    services = {
        name: ServiceProcess(verb, bus.server.url_for(verb), *options)
        for name, (verb, *options) in wanted.items()
    }
    for service in services.values():
        await stack.enter_async_context(service)
    for service in services.values():
        await service.ready()
    return services


def _found(watched: Watched, load: Load, quiet: list[str], during: list[str]) -> dict[str, Any]:
    return {
        "pods": len(quiet) + len(during),
        "not_allocated": load.missing([*quiet, *during]),
        "median_ms_without": round(load.median_ms(quiet), 2),
        "median_ms_during": round(load.median_ms(during), 2),
        "wrong": watched.wrong,
        "events": dict(watched.counts),
        "records_of_tenants": watched.recorded,
        "contradictions": watched.state.refused_count,
    }


async def _unready(services: dict[str, ServiceProcess]) -> dict[str, str]:
    """Return the services that are not ready, with the reason, after a grace period for
    restarts."""
    found: dict[str, str] = {}
    for name, service in services.items():
        try:
            await service.ready(timeout_s=SETTLE_S)
        except AssertionError as reason:
            found[name] = str(reason)[:500]
    return found


async def _refused(services: dict[str, ServiceProcess]) -> dict[str, float]:
    """Return the number of events that intakes refused, by cause."""
    causes: dict[str, float] = {}
    for intake in ("intake 1", "intake 2"):
        with contextlib.suppress(OSError):
            _, told = await services[intake].get("/metrics")
            for line in told.splitlines():
                if line.startswith("apportion_intake_refused_total{"):
                    cause, _, count = line.partition("} ")
                    name = cause.split('"')[1]
                    causes[name] = causes.get(name, 0.0) + float(count)
    return causes


async def _verb(bus: Bus, role: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run an `apportion` command as this role. Return its exit code, output and errors."""
    environment = {**os.environ, "APPORTION_NATS_URL": bus.server.url_for(role)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apportion.cli.main", *arguments,
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode(errors="replace")[-500:]


async def _verify(bus: Bus) -> dict[str, Any]:
    """Return the result of `apportion verify --json`, which must report no violation."""
    code, out, errors = await _verb(bus, "auditor", "verify", "--json")
    return {"exit_code": code, "told": json.loads(out) if out else {"said": errors}}


def _broken(found: dict[str, Any]) -> list[str]:
    """Return the names of the violated limits."""
    full, attacks = found["full_ledger"], found["attacks"]
    most_ms = max(SLOWER * found["median_ms_without"], found["median_ms_without"] + NOISE_MS)
    holds = {
        SLOWER_THAN: found["median_ms_during"] <= most_ms,
        "no other node is harmed": not found["wrong"],
        "every pod is submitted": not found["not_submitted"],
        "every pod is allocated": not found["not_allocated"],
        "every service is ready": not found["unready"] and not found["unready_after"],
        "the ledger is whole": found["verify"]["exit_code"] == 0,
        "people get connections": not found["people_refused"],
        "the server's memory": found["server_mib"] <= SERVER_MIB_MAX,
        "containers harm no agent and no neighbour": not attacks["tenants"].get("wrong"),
        "the tenants' agent records use": found["records_of_tenants"] > 0,
        "attackers were at work": all(did and "died" not in did for did in attacks.values()),
        "connections were taken": attacks["connections"].get("open", 0) > 0,
        "the reserve is kept": full["free"] >= KEPT * RESERVE,
        "the flood reached the reserve": "again" in full["attack"]["flood"],
        "pods are placed from the reserve": not full["not_placed"],
        "a full ledger is reported": not full["ready_when_full"],
        "services go on with room": not full["unready_with_room"],
    }
    return [name for name, held in holds.items() if not held]


def main() -> int:
    """Run the fuzzer. Return 0 if no limit was violated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="apportion-fuzz-") as folder:
        found = asyncio.run(play(Path(folder), wanted.seconds, wanted.seed))
    echo(json.dumps(found, indent=2))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
