"""While an agent is suspended (SIGSTOP), its node is not ready."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from apportion_schemas import (
    DeviceConstraints,
    NodeHeard,
    NodeReported,
    NodeSilent,
    PodBound,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    RefusalCode,
    SharesAllocated,
)
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.pods import ask, pod, shape
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

GRACE_S = "13"
"""More than two beats, which are six seconds apart: silence is counted by beats of a scheduler's
own, and in twice as many of these one of an agent may come a moment too late.
"""
Start = Callable[..., Awaitable[ServiceProcess]]


@pytest.fixture
async def service(bus: Bus) -> AsyncIterator[Start]:
    """Provide a function that starts a service of a role. The services stop when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(role: str, *options: str) -> ServiceProcess:
            process = ServiceProcess(role, bus.server.url_for(role), *options)
            return await stack.enter_async_context(process)

        yield start


async def verb(url: str, *arguments: str) -> str:
    """Run a verb, and return its output joined into one line."""
    command = [*APPORTION, *arguments, "--gateway", url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


async def test_a_stopped_agent_makes_its_node_unready_until_it_goes_on(
    bus: Bus, service: Start
) -> None:
    """While an agent is suspended, all schedulers and commands treat its node as not ready."""
    facts = Facts(bus)
    await facts.open()
    stopped = await service("agent", "--node", "rack-1", "--simulate", "1xT4")
    await service("agent", "--node", "rack-2", "--simulate", "2xT4")
    for name in ("one", "two"):
        options = ("--agent-grace", GRACE_S, "--snapshot-every", "0")
        await service("scheduler", "--name", name, *options)
    gateway = await service("gateway", "--listen", "127.0.0.1:0")
    url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
    reports: list[NodeReported] = await facts.count(NodeReported, 2)
    (card,) = next(each for each in reports if each.node == "rack-1").devices

    def there(name: str) -> PodSubmitted:
        return pod(name, shape=shape(ask(2_000), devices=DeviceConstraints(use_ids=(card.id,))))

    await facts.write(there("early"))
    await facts.count(PodPlaced, 1)
    stopped.stop_short()
    await service("binder")
    await facts.count(PodBound, 1)
    await facts.count(NodeSilent, 1)
    assert not facts.of(SharesAllocated)
    await facts.write(there("late"))
    (refused,) = await facts.count(PodRefused, 1)
    assert refused.reasons[RefusalCode.AGENT_SILENT] == 1
    seen = ("--at-least", str(facts.revision))
    assert "agent not reporting" in await verb(url, "get", "nodes", *seen)
    assert "agent of rack-1" in await verb(url, "why", "early")
    stopped.go_on()
    await facts.count(SharesAllocated, 2)
    assert [each.node for each in facts.of(NodeSilent)] == ["rack-1"]
    assert [each.node for each in facts.of(NodeHeard)] == ["rack-1"]
