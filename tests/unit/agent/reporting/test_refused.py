"""Tests that an agent retries a refused report until the intake accepts it. They run a real intake
in virtual time."""

import asyncio
import random

import pytest

from apportion.agent.reporting.agent import IntakeClient
from apportion.core.devices.simulating import simulated_devices
from apportion.intake.taking import LATER_S
from apportion.runtime.files.fleets import SimulatedNode
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.service.soundness import Soundness
from apportion_schemas import Device, Host, NodeReported, ReportRefused, UsageRecorded
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_ledger import MemoryLedger
from tests.support.virtual_services import Services

HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)
CARD = simulated_devices("old", "1xT4")


def test_a_card_that_was_moved_is_taken_once_its_old_node_is_without_it() -> None:
    """If a GPU was moved, the intake refuses the new node's report while the old node's last report
    still lists that GPU. The ledger records the refusal once."""

    async def moved() -> None:
        services = Services()
        await services.intake()
        assert (await services.say(report("old", CARD), "with")).revision == 1
        services.agent(SimulatedNode("new", CARD, HOST), SimulatedNode("other", (), HOST))
        await rest(200)
        assert nodes(services) == ["old", "other"]
        assert [each.cause for each in services.written(ReportRefused)] == [
            "device-of-another-node"
        ]
        assert (await services.say(report("old", ()), "without")).revision is not None
        await rest(61)
        assert nodes(services) == ["old", "other", "old", "new"]
        await rest(200)
        assert len(nodes(services)) == 4

    run_virtually(moved())


def test_what_people_are_told_ends_though_all_is_as_it_was_before() -> None:
    """After a refusal the agent sends a full report even if the node is back in its earlier state.
    That report clears the refusal."""

    async def put_back() -> None:
        services = Services()
        await services.intake()
        await services.say(report("old", CARD), "with")
        services.agent(SimulatedNode("new", (), HOST))
        await rest(1)
        assert (await services.say(report("new", CARD), "put in")).refused
        await rest(1)
        assert len(services.written(ReportRefused)) == 1
        assert nodes(services) == ["old", "new"]
        await rest(60)
        assert nodes(services) == ["old", "new", "new"]
        await rest(200)
        assert nodes(services) == ["old", "new", "new"]

    run_virtually(put_back())


def test_two_agents_of_one_name_do_not_outwrite_each_other() -> None:
    """If two agents report different devices for the same node, each of them appends one report.
    After that, neither agent reports again."""

    async def contradict() -> None:
        services = Services()
        await services.intake()
        for devices in (CARD, ()):
            services.agent(SimulatedNode("new", devices, HOST))
            await rest(1)
        await rest(2_000)
        assert nodes(services) == ["new", "new"]

    run_virtually(contradict())


def report(node: str, devices: tuple[Device, ...]) -> NodeReported:
    return NodeReported(node=node, devices=devices, host=HOST, driver="simulated", simulated=True)


def nodes(services: Services) -> list[str]:
    """Return the node name of each report in the ledger, in order."""
    return [each.node for each in services.written(NodeReported)]


def test_use_is_sent_again_as_late_as_an_intake_of_a_full_ledger_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the intake refuses a usage record because the ledger is full, the agent retries after the
    delay that the intake asks for."""
    room = [0.07]
    monkeypatch.setattr(Soundness, "free", lambda _soundness, _after_bytes=0: room[0])

    async def full() -> None:
        services, clock = Services(), SkewedClock(random.Random(0), skew_s=0.0)
        intake = await services.intake()
        assert (await services.say(report("n1", CARD), "node")).revision == 1
        client = IntakeClient(MemoryLedger(services.server, role="agent"), clock)
        record = UsageRecorded(node="n1", seconds=3_600, shares=())
        publishing = asyncio.create_task(
            Publisher("agent/n1", clock, client.append).publish(record, event_id="u", basis=1)
        )
        await rest(3.5 * LATER_S)
        page = intake.metrics.render().decode()
        _, _, asked = page.partition('apportion_intake_events_total{outcome="again"} ')
        assert 3 <= float(asked.split()[0]) <= 8  # each pause is at least half of LATER_S
        assert not publishing.done()
        room[0] = 1.0
        await rest(LATER_S)
        assert services.written(UsageRecorded) == [record]

    run_virtually(full())
