"""`apportion simulate` makes simulated nodes disappear and return. The ledger records the same
events as for real nodes."""

import asyncio
import subprocess
from contextlib import AsyncExitStack

import pytest

from apportion_schemas import (
    DeviceConstraints,
    DeviceHealthChanged,
    NodeHeard,
    NodeReported,
    NodeSilent,
    PodBound,
    PodPlaced,
    SharesAllocated,
)
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.pods import ask, pod, shape
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

pytestmark = pytest.mark.slow
GRACE_S = "20"
"""Of ten seconds two rounds of the scheduler may pass without a beat of an agent that is well, and
three where the machine stands still between them.
"""


async def order(bus: Bus, gateway: str, *words: str, code: int = 0) -> str:
    """Run `apportion simulate`, and return its output."""
    command = [*APPORTION, "simulate", *words, "--gateway", gateway, "--nats"]
    done = await asyncio.to_thread(
        subprocess.run, [*command, bus.server.url_for("operator")], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


async def test_a_node_is_lost_and_returns(bus: Bus) -> None:
    """`simulate` makes one of an agent's two nodes disappear and return. Pods bound in the meantime
    are allocated on its return."""
    facts = Facts(bus)
    await facts.open()
    async with AsyncExitStack() as stack:

        async def start(role: str, *options: str) -> ServiceProcess:
            process = ServiceProcess(role, bus.server.url_for(role), *options)
            return await stack.enter_async_context(process)

        await start("agent", "--node", "rack-{}", "--nodes", "2", "--simulate", "1xT4")
        await start("scheduler", "--agent-grace", GRACE_S, "--snapshot-every", "0")
        gateway = await start("gateway", "--listen", "127.0.0.1:0")
        url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
        reports = await facts.count(NodeReported, 2)
        card = next(each for each in reports if each.node == "rack-1").devices[0]

        assert "rack-1" in await order(bus, url, "lose", card.id, code=1)
        assert "rack-9" in await order(bus, url, "lose", "rack-9", code=1)
        assert "already online" in await order(bus, url, "return", "rack-1")
        assert "is already healthy" in await order(bus, url, "recover", card.id)
        wanted = shape(ask(2_000), devices=DeviceConstraints(use_ids=(card.id,)))
        await facts.write(pod("p1", shape=wanted), pod("p2", ask(2_000)))
        await facts.count(PodPlaced, 2)
        assert "is offline" in await order(bus, url, "lose", "rack-1")
        assert "already offline" in await order(bus, url, "lose", "rack-1"), "in its grace"
        await start("binder")
        await facts.count(PodBound, 2)
        (silent,) = await facts.count(NodeSilent, 1)
        assert silent.node == "rack-1"
        assert "already offline" in await order(bus, url, "lose", "rack-1"), "and after"
        assert "p1" not in {each.pod for each in facts.of(SharesAllocated)}
        assert "rack-1 is back online" in await order(bus, url, "return", "rack-1")
        again = await order(bus, url, "return", "rack-1")
        assert "already online" in again, "it is back once that is said"
        assert "is offline" in await order(bus, url, "lose", "rack-2")
        assert "rack-2 is back online" in await order(bus, url, "return", "rack-2")
        heard = await facts.count(NodeHeard, 1)
        assert heard[0].node == "rack-1"
        allocated = await facts.count(SharesAllocated, 2)
        assert {each.pod for each in allocated} == {"p1", "p2"}


async def test_a_device_that_has_failed_keeps_its_reason(bus: Bus) -> None:
    """If a device has already failed, `simulate fail` without `--reason` changes nothing. A
    different `--reason` replaces the recorded reason."""
    facts = Facts(bus)
    await facts.open()
    async with AsyncExitStack() as stack:
        options = ("--node", "rack-1", "--simulate", "1xT4")
        agent = ServiceProcess("agent", bus.server.url_for("agent"), *options)
        await stack.enter_async_context(agent)
        gateway = ServiceProcess(
            "gateway", bus.server.url_for("gateway"), "--listen", "127.0.0.1:0"
        )
        await stack.enter_async_context(gateway)
        url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
        (report,) = await facts.count(NodeReported, 1)
        card = report.devices[0].id

        async def health(count: int) -> str:
            changes: list[DeviceHealthChanged] = await facts.count(DeviceHealthChanged, count)
            revision = str(facts.revision)
            command = [*APPORTION, "get", "devices", "--at-least", revision, "--gateway", url]
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
            return changes[-1].reason

        assert "has failed" in await order(bus, url, "fail", card)
        assert await health(1) == "simulated"
        assert "had already failed" in await order(bus, url, "fail", card)
        assert "has failed" in await order(bus, url, "fail", card, "--reason", "XID 79")
        assert await health(2) == "XID 79"
        assert "had already failed" in await order(bus, url, "fail", card), "for that reason"
        assert "has recovered" in await order(bus, url, "recover", card)
        assert await health(3) == ""
        assert "is already healthy" in await order(bus, url, "recover", card)
