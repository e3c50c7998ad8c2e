"""Attack 4: a client that may append to the ledger appends an event of an unknown type.

A reader that does not know an event's type must halt before the event. Otherwise its state would
differ from the state of other readers. So without the guard one message on any subject halts every
service for good."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from apportion.runtime.ledger.port import Draft
from apportion_schemas import FormatEnabled, NodeReported, SharesAllocated
from tests.security.weakened import without as taken_out
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess, environment

SERVICES = (
    ("scheduler", "--name", "test"),
    ("binder",),
    ("gateway", "--listen", "127.0.0.1:0"),
    ("agent", "--simulate", "2xA100-80GB", "--node", "node-a"),
)
INVENTED = {
    "specversion": "1.0", "type": "apportion.dev/PodWeighed", "schemaversion": 1, "source": "x",
    "time": "2026-01-01T00:00:00.000000Z", "data": {"more": 1},
}  # fmt: skip


class System:
    """Every service on one ledger, and an attacker with a watcher's rights."""

    def __init__(self, bus: Bus, facts: Facts, services: list[ServiceProcess]) -> None:
        self.bus = bus
        self.facts = facts
        self.services = services
        self._pods = 0

    async def goes_on(self) -> None:
        """Check that one more pod is placed, bound and allocated, and that all services are
        ready."""
        self._pods += 1
        await self.facts.write(pod(f"p{self._pods}", ask(1000)))
        await self.facts.count(SharesAllocated, self._pods)
        await asyncio.gather(*(service.ready() for service in self.services))

    async def attack(self, subject: str) -> int:
        """Append an event of an unknown type on `subject`, and return the event's revision."""
        watcher = await self.bus.connect("watcher" if "workload" in subject else "scheduler")
        payload = json.dumps(INVENTED | {"id": f"rogue-{subject}"}).encode()
        [revision] = await watcher.append([Draft(f"apportion.v1.{subject}", subject, payload)])
        return revision

    async def halted(self, *verbs: str) -> None:
        """Wait until these services report that they have halted before an unknown event."""
        for service in self.services:
            if service.verb in verbs:
                await until(partial(_halted, service), f"{service.verb} to halt")

    async def verified(self) -> dict[str, Any]:
        """Return the findings of `verify`, except those about events of a wrong writer."""
        found: dict[str, Any] = json.loads(await self.run("verify", "--json", code=1))
        assert found["found"].pop("owner") > 0
        found["violations"] = [each for each in found["violations"] if each["check"] != "owner"]
        return found

    async def run(self, *words: str, code: int = 0) -> str:
        """Run a verb of the command line as the operator, and return its output."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "apportion.cli.main", *words],
            env={**environment(None), "APPORTION_NATS_URL": self.bus.server.url_for("operator")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


async def _halted(service: ServiceProcess) -> bool:
    status, body = await service.get("/readyz")
    return status == 503 and "PodWeighed" in body and "upgrade Apportion" in body


@contextlib.asynccontextmanager
async def running(folder: Path, without: str) -> AsyncIterator[System]:
    """Yield all services, ready to work, with the named guard removed from each."""
    first = taken_out(without)
    async with running_bus(folder / "nats") as bus, contextlib.AsyncExitStack() as stack:
        services = [
            ServiceProcess(verb, bus.server.url_for(verb), *options, first=first)
            for verb, *options in SERVICES
        ]
        await asyncio.gather(*(stack.enter_async_context(each) for each in services))
        facts = Facts(bus)
        await facts.open()
        await facts.count(NodeReported, 1)
        system = System(bus, facts, services)
        await system.goes_on()
        yield system


@pytest.mark.parametrize("without", ["asks what is enabled", ""], ids=["weak", "guarded"])
async def test_an_invented_type_halts_nobody(tmp_path: Path, without: str) -> None:
    """An event of an unknown type, on a pod's or a node's subject, halts no service. Every service
    and `verify` report which revision was ignored and why.

    Without the guard every service halts, so no pod is placed, bound or allocated any more."""
    async with running(tmp_path, without) as system:
        revisions = [await system.attack(each) for each in ("workload.x", "placement.node-a")]
        if without:
            await system.halted("scheduler", "binder", "gateway", "agent")
            return
        await system.goes_on()
        for service in system.services:
            line = await service.logged(f"revision {revisions[1]} on apportion.v1.placement.node-a")
            assert "'PodWeighed@1'" in str(line["event"])
            _, metrics = await service.get("/metrics")
            count = 1 if service.verb == "agent" else 2
            name = 'apportion_events_folded_total{type="not enabled"}'
            assert f"{name} {count}.0" in metrics.splitlines()
        found = await system.verified()
        assert found["found"] == {"format": 2}
        assert [each["revision"] for each in found["violations"]] == revisions


@pytest.mark.parametrize("without", ["looks for what is set aside", ""], ids=["weak", "guarded"])
async def test_what_halts_can_be_set_aside(tmp_path: Path, without: str) -> None:
    """If services halt at an event that no build can read, `ledger set-aside` lets them continue.

    The event stays in the ledger. `verify` reports it with the reason and the operator's name."""
    async with running(tmp_path, without) as system:
        enabled = FormatEnabled(format="PodWeighed", version=1, by="ada")
        await system.facts.write(enabled, role="operator")
        revision = await system.attack("workload.x")
        await system.halted("scheduler", "binder", "gateway")
        aside = ("ledger", "set-aside", str(revision), "--reason", "bug 99", "--by", "ada")
        await system.run(*aside)
        if without:
            await system.verified()
            await system.halted("scheduler", "binder", "gateway")
            return
        await system.goes_on()
        found = await system.verified()
        assert found["found"] == {}
        assert list(found["set_aside"]) == [str(revision)]
        assert found["set_aside"][str(revision)].endswith("by ada: bug 99")
        await system.run(*aside, code=1)
        late = ServiceProcess("watcher", system.bus.server.url_for("watcher"),
                              "--manifests", str(tmp_path))  # fmt: skip
        async with late:
            await late.ready()  # one that begins now passes over it as well
