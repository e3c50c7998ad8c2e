"""An agent and an auditor who try everything that they may, for as long as you like.

    python -m tests.security.fuzz --seconds 3600 --seed 1

A real nats-server, real schedulers, intakes, binders and agents, pods that come and go, and two
attackers in processes of their own (`tests.security.attacker`). First the pods alone, then with the
attackers. In the end, printed as JSON: `apportion verify` passes; no other node's inventory changed
and nobody answered for its pods; every service is ready; and the median time from a pod to its
placement is within 100 ms of the one without attackers. Exit code 1 if anything of it is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final

from click import echo

from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion_schemas import (
    AllocationFailed,
    DeviceHealthChanged,
    Event,
    NodeReported,
    NodeSilent,
    PodGone,
    PodPlaced,
    SharesAllocated,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.envelope import EventError
from tests.security.attacked import AGENT, AUDITOR, attacked
from tests.simulation.hostile import NODE
from tests.support.nats import Bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess

CLOCK: Final = SystemClock()
WITHIN_MS: Final = 100.0
PODS_EACH_S: Final = 5.0
LIVE_MAX: Final = 150
NODES: Final = 8
SETTLE_S: Final = 30.0
QUIET_S: Final = 60.0
"""The longest time without attackers."""
ENOUGH: Final = 50
"""More than so often an attacker has done what it may, and what it may not, when it is ended."""


def say(text: str) -> None:
    """What goes on, for somebody who waits."""
    echo(text, err=True)


class Watched:
    """The ledger as it is read: what became of each pod, and what should not have been."""

    def __init__(self) -> None:
        self.fold = StateFold(quiet=True)
        self.placed: dict[str, float] = {}
        self.allocated: set[str] = set()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.attacked = False

    @property
    def state(self) -> State:
        """What the ledger says."""
        return self.fold.state

    def take(self, record: Record) -> None:
        """The next record."""
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
        if self.attacked and node != NODE and isinstance(data, hurt):
            self._complain(f"revision {record.revision}: {type(data).__name__} of {node}")
        if event.source == f"agent/{NODE}" and node != NODE:
            self._complain(f"revision {record.revision}: {NODE} spoke of {node}")
        if isinstance(data, NodeReported) and node == NODE and data.devices:
            self._complain(f"revision {record.revision}: {NODE} has cards that are made up")

    def _complain(self, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(what)


class Load:
    """Pods that come, and end when there are many."""

    def __init__(self, bus: Bus, watched: Watched) -> None:
        self._bus = bus
        self._watched = watched
        self._live: deque[str] = deque()
        self._came = 0
        self.came_at: dict[str, float] = {}

    async def come(self, seconds: float) -> list[str]:
        """Let pods come for so long; their uids."""
        pen = await self._bus.connect("watcher")
        end = time.monotonic() + seconds
        came: list[str] = []
        said = time.monotonic()
        while time.monotonic() < end:
            uid = f"fuzz-{self._came:07}"
            self._came += 1
            self.came_at[uid] = time.monotonic()
            await pen.append([_draft(pod(uid, ask(1000, cores=1)), f"{uid}/submitted")])
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
        """From the pod to its placement."""
        placed = self._watched.placed
        waits = [placed[uid] - self.came_at[uid] for uid in uids if uid in placed]
        return 1000 * statistics.median(waits) if waits else float("inf")

    async def done(self, uids: list[str]) -> None:
        """Wait until the last of them are allocated."""

        async def allocated() -> bool:
            return self._watched.allocated.issuperset(uids[-20:])

        with contextlib.suppress(AssertionError):  # which are not is told in the end
            await until(allocated, "the last pods", timeout_s=SETTLE_S)


def _draft(data: Any, identity: str) -> Draft:
    event = Event(id=identity, source="watcher", time=rfc3339(CLOCK.now()), data=data)
    return Draft(subject_of(data), identity, encode(event))


async def play(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """One fuzz, and what came of it."""
    async with attacked(folder) as bus, contextlib.AsyncExitStack() as stack:
        watched = Watched()
        reader = await bus.connect("gateway")
        await reader.follow(watched.take)
        services = await _start(bus, stack)
        load = Load(bus, watched)
        quiet_s = min(QUIET_S, seconds / 2)
        say(f"{quiet_s:.0f} s without attackers")
        before = await load.come(quiet_s)
        await load.done(before)
        watched.attacked = True
        say(f"{seconds:.0f} s with an agent and an auditor who try everything that they may")
        attackers = {role: await _attacker(bus, role, seed) for role in ("agent", "auditor")}
        try:
            during = await load.come(seconds)
            while not all(_did_enough(bus, role, each) for role, each in attackers.items()):
                during += await load.come(1.0)  # the machine stood still
        finally:
            deeds = {role: await _ended(bus, role, each) for role, each in attackers.items()}
        await load.done(during)
        found = _found(watched, load, before, during)
        found["attacks"] = deeds
        found["unready"] = await _unready(services)
        found["refused_by_intakes"] = await _refused(services)
        found["verify"] = await _verify(bus)
    found["seed"], found["seconds"] = seed, seconds
    found["ok"] = _all_right(found)
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


async def _attacker(bus: Bus, role: str, seed: int) -> asyncio.subprocess.Process:
    """One attacker, at work."""
    name = {"agent": AGENT, "auditor": AUDITOR}[role].name
    environment = {**os.environ, "APPORTION_NATS_URL": bus.server.url_for(name)}
    told, log = bus.data_dir / f"{role}.json", bus.data_dir / f"{role}.log"
    with told.open("wb") as out, log.open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.security.attacker", role, "--seed", str(seed),
            env=environment, stdout=out, stderr=errors,
        )  # fmt: skip


def _did_enough(bus: Bus, role: str, process: asyncio.subprocess.Process) -> bool:
    """Whether there is nothing to wait for: it did enough, or it died."""
    did = _told(bus, role)
    return process.returncode is not None or all(
        did.get(deed, 0) > ENOUGH for deed in ("permitted", "forbidden")
    )


def _told(bus: Bus, role: str) -> dict[str, Any]:
    """What an attacker said last of what it did."""
    lines = (bus.data_dir / f"{role}.json").read_text("utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    did: dict[str, Any] = json.loads(whole[-1]) if whole else {}
    return did


async def _ended(bus: Bus, role: str, process: asyncio.subprocess.Process) -> dict[str, Any]:
    """What an attacker did until it was ended."""
    alive = process.returncode is None
    if alive:
        process.kill()
    await process.wait()
    did = _told(bus, role)
    if not alive:
        log = (bus.data_dir / f"{role}.log").read_text("utf-8", "replace")
        did["died"] = log.splitlines()[-1:]
    return did


def _found(watched: Watched, load: Load, before: list[str], during: list[str]) -> dict[str, Any]:
    missing = [uid for uid in (*before, *during) if uid not in watched.allocated]
    return {
        "pods": len(before) + len(during),
        "not_allocated": missing[-20:],
        "median_ms_without": round(load.median_ms(before), 2),
        "median_ms_during": round(load.median_ms(during), 2),
        "wrong": watched.wrong,
        "events": dict(watched.counts),
        "contradictions": watched.state.refused_count,
    }


async def _unready(services: dict[str, ServiceProcess]) -> dict[str, str]:
    """Those that are not ready, and why. One that begins anew has a while for it."""
    found: dict[str, str] = {}
    for name, service in services.items():
        try:
            await service.ready(timeout_s=SETTLE_S)
        except AssertionError as reason:
            found[name] = str(reason)[:500]
    return found


async def _refused(services: dict[str, ServiceProcess]) -> dict[str, float]:
    """What intakes refused, by cause."""
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


async def _verify(bus: Bus) -> dict[str, Any]:
    """What `apportion verify --json` says, which must be nothing but that all is right.

    The pods' pen signs as the watcher, so no owner is wrong either. It reads as an auditor: what
    another one tried has cost the copy nothing.
    """
    environment = {**os.environ, "APPORTION_NATS_URL": bus.server.url_for("auditor")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apportion.cli.main", "verify", "--json",
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    told = json.loads(out) if out else {"said": errors.decode(errors="replace")[-500:]}
    return {"exit_code": process.returncode, "told": told}


def _all_right(found: dict[str, Any]) -> bool:
    slower_ms = found["median_ms_during"] - found["median_ms_without"]
    return (
        slower_ms <= WITHIN_MS
        and not found["wrong"]
        and not found["not_allocated"]
        and not found["unready"]
        and found["verify"]["exit_code"] == 0
        and all(deeds and "died" not in deeds for deeds in found["attacks"].values())
    )


def main() -> int:
    """0 if everything held."""
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
