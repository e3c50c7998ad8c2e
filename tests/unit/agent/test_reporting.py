"""The agent's reports, over a ledger in memory: said once, and upon what the ledger holds."""

import asyncio

from apportion.agent.reporting import Agent, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Device, Host, NodeReported
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.polling import until

NODE = "n1"
HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)


def report(backend: SimulatedBackend, devices: tuple[Device, ...]) -> NodeReported:
    """What an agent of the node says of these devices."""
    return NodeReported(
        node=NODE, devices=devices, host=HOST, driver=backend.driver, simulated=True
    )


async def test_who_comes_back_reads_all_that_was_said_before_saying_more() -> None:
    """The newest report is what it has; of the oldest alone it would differ, and say all anew."""
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
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (agent.watch(), agent.fold())]

            async def reported() -> bool:
                return agent.not_ready() == ["orders are not taken yet"]

            await until(reported, "the agent to have reported")
            for task in tasks:
                task.cancel()
        assert await ledger.last_revision() == 2
