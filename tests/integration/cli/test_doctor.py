"""Tests of `apportion doctor` and `/api/v1/doctor` with real processes and real failures."""

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from apportion.runtime.jetstream.stream import WANTED
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion_schemas import NodeReported
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

pytestmark = pytest.mark.slow
Start = Callable[..., Awaitable[ServiceProcess]]
GRACE = ("--agent-grace", "20")
"""In ten seconds two rounds of a scheduler may pass without a beat of an agent that is well."""


@pytest.fixture
async def start(bus: Bus) -> AsyncIterator[Start]:
    """Provide a function that starts a service. The service is stopped when the test ends."""
    async with AsyncExitStack() as stack:

        async def started(role: str, *options: str) -> ServiceProcess:
            process = ServiceProcess(role, bus.server.url_for(role), *options)
            return await stack.enter_async_context(process)

        yield started


class Asking:
    """Runs `apportion doctor` for a test, with the addresses of the ledger and the gateway."""

    def __init__(self, bus: Bus, url: str, *, only_gateway: bool = False) -> None:
        nats = {"APPORTION_NATS_URL": "" if only_gateway else bus.server.url_for("operator")}
        self._environment = {**os.environ, **nats, "APPORTION_GATEWAY": url, "COLUMNS": "120"}

    async def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run doctor once, and return its whole output."""
        return await asyncio.to_thread(
            subprocess.run, [*APPORTION, "doctor", *options], env=self._environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    async def states(self, *options: str) -> dict[str, dict[str, Any]]:
        """Run doctor once, and return the checks by name."""
        done = await self.run("--json", *options)
        checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
        broken = any(check["state"] == "broken" for check in checks.values())
        assert done.returncode == int(broken), done.stderr
        return checks

    async def until(self, name: str, state: str, *options: str) -> dict[str, Any]:
        """Wait until the check `name` is in the state `state`, and return the check."""

        async def look() -> dict[str, Any] | None:
            check = (await self.states(*options)).get(name, {})
            return check if check.get("state") == state else None

        found = await until(look, f"{name} to be {state}")
        assert found is not None
        return found

    async def until_well(self, *options: str, but: set[str]) -> dict[str, dict[str, Any]]:
        """Wait until every check is ok except those in `but`.

        Doctor runs repeatedly, because it misses the schedulers' heartbeats if the machine stalls
        for three seconds."""
        unwell: dict[str, str] = {}

        async def look() -> dict[str, dict[str, Any]]:
            checks = await self.states(*options)
            unwell.clear()
            unwell.update({n: c["words"] for n, c in checks.items() if c["state"] != "ok"})
            return checks if unwell.keys() == but else {}

        try:
            return await until(look, f"all but {but} to be ok")
        except AssertionError as error:
            raise AssertionError(f"{error}; these are not: {unwell}") from None


async def test_what_breaks_is_named_with_its_fix(bus: Bus, start: Start) -> None:
    """Doctor reports a stopped agent, duplicate scheduler names, a changed stream setting and
    missing services, each with its fix."""
    facts = Facts(bus)
    await facts.open()
    agent = await start("agent", "--node", "rack-1", "--simulate", "2xT4")
    await facts.count(NodeReported, 1)
    await start("scheduler", "--name", "one", *GRACE)
    gateway = await start("gateway", "--listen", "127.0.0.1:0")
    await gateway.ready()
    url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
    asking = Asking(bus, url)

    states = await asking.until_well("--monitor", bus.server.monitor_url, but={"replicas"})
    assert states["agents"]["words"].endswith("(1 node)")
    assert (await asking.states())["durability"]["state"] == "warning"

    far = await Asking(bus, url, only_gateway=True).until_well(but={"replicas", "durability"})
    assert {"ledger", "stream", "agents"} <= far.keys()

    second = await start("scheduler", "--name", "one", *GRACE)
    assert (await asking.until("schedulers", "warning"))["fix"]
    await second.stop()

    agent.stop_short()
    assert "rack-1" in (await asking.until("agents", "broken"))["words"]
    screen = await asking.run()
    assert screen.returncode == 1
    advice = " ".join(screen.stdout.split())
    assert "`apportion simulate return rack-1`" in advice
    agent.go_on()
    await asking.until("agents", "ok")

    await drift_and_back(bus, asking)
    theirs = json.loads(await asyncio.to_thread(_get, f"{url}/api/v1/doctor"))
    assert theirs["revision"] == facts.revision
    assert {"schedulers", "agents", "folds", "stream"} <= {each["id"] for each in theirs["checks"]}
    await mute(bus, asking)
    await gateway.kill()
    await alone(bus, asking)


async def mute(bus: Bus, asking: Asking) -> None:
    """Suspend nats-server, and check that doctor reports the ledger as failed.

    Checks that need the ledger must report "unknown"."""
    os.kill(bus.server.pid, signal.SIGSTOP)
    try:
        await asking.until("schedulers", "unknown")
        states = await asking.states()
    finally:
        os.kill(bus.server.pid, signal.SIGCONT)
    assert states["ledger"]["state"] == "broken"
    assert "runs but does not answer" in states["ledger"]["fix"]
    hidden = {states[name]["state"] for name in ("schedulers", "agents", "folds")}
    assert hidden == {"unknown"}


async def drift_and_back(bus: Bus, asking: Asking) -> None:
    """Change a setting of the stream from outside, and check that doctor reports the change. After
    the setting is restored, doctor must accept it."""
    boot = await bus.connect("bootstrap")
    for window_s, state in ((60, "broken"), (120, "ok")):
        wanted = {**WANTED, "name": STREAM, "num_replicas": 1, "max_bytes": -1}
        wanted["duplicate_window"] = window_s * 1_000_000_000
        await call_api(boot.wire, f"STREAM.UPDATE.{STREAM}", wanted)
        check = await asking.until("stream", state)
        assert ("duplicate_window" in check["words"]) is (state == "broken")


async def alone(bus: Bus, asking: Asking) -> None:
    """Check that doctor without a gateway still checks the ledger. Without gateway and ledger it
    exits with 3."""
    states = await asking.states()
    assert states["gateway"]["state"] == "broken"
    assert states["stream"]["state"] == "ok"
    assert "agents" not in states
    await bus.crash()
    done = await asking.run()
    assert done.returncode == 3
    assert f"no connection to nats://127.0.0.1:{bus.server.port}" in done.stderr
    assert "cannot reach the gateway at" in done.stderr


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own address
        body: bytes = answer.read()
        return body
