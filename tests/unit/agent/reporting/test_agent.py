"""Tests that the agent appends only reports that the ledger lacks. The ledger is in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Device, DeviceHealthChanged, Host, NodeReported
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.polling import until

NODE = "n1"
HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)


def report(backend: SimulatedBackend, devices: tuple[Device, ...]) -> NodeReported:
    return NodeReported(
        node=NODE, devices=devices, host=HOST, driver=backend.driver, simulated=True
    )


@contextlib.asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[None]:
    """Run the agent for the duration of a `with` block. First wait until the agent has reported its
    nodes."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (agent.watch(), agent.fold())]

        async def reported() -> bool:
            return agent.not_ready() == ["not ready for commands yet"]

        await until(reported, "the agent to have reported")
        yield
        for task in tasks:
            task.cancel()


async def test_who_comes_back_reads_all_that_was_said_before_saying_more() -> None:
    """A restarted agent reads all earlier reports before it reports. It appends nothing if the
    newest report is still correct."""
    ledger = MemoryLedger(MemoryServer(), role="intake")
    devices = simulated_devices(NODE, "2xT4")
    backend = SimulatedBackend(devices)
    async with GroupCommit(ledger) as commit:
        publisher = Publisher(f"agent/{NODE}", SystemClock(), commit.append)
        for number, had in enumerate((devices[:1], devices)):
            await publisher.publish(
                report(backend, had), event_id=f"earlier-{number}", basis=number
            )
        node = Node(NODE, backend, HOST, publisher)
        agent = Agent([node], ledger, Metrics())
        async with running(agent):
            pass
        assert await ledger.last_revision() == 2


@pytest.mark.parametrize("basis", [0, 1], ids=["behind", "as far as we had when we began"])
async def test_a_report_of_an_earlier_life_that_comes_late_is_answered(basis: int) -> None:
    """A late event of the agent's previous process may be wrong. The agent then corrects it with a
    full report."""
    ledger = MemoryLedger(MemoryServer(), role="intake")
    devices = simulated_devices(NODE, "1xT4")
    backend = SimulatedBackend(devices)
    async with GroupCommit(ledger) as commit:
        publisher = Publisher(f"agent/{NODE}", SystemClock(), commit.append)
        await publisher.publish(report(backend, devices), event_id="earlier", basis=0)
        agent = Agent([Node(NODE, backend, HOST, publisher)], ledger, Metrics())
        async with running(agent):
            ill = DeviceHealthChanged(node=NODE, device=devices[0].id, healthy=False, reason="late")
            await publisher.publish(ill, event_id="late", basis=basis)

            async def answered() -> bool:
                said = agent.view_of(NODE).said
                return await ledger.last_revision() == 3 and said == report(backend, devices)

            await until(answered, "the agent to say what its device is now")
