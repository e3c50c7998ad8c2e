"""Tests that a node may report a device of a removed node, since devices move between nodes.

They also show what a compromised agent gains if it claims another node's device."""

from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.files.fleets import SimulatedNode
from apportion_schemas import Host, NodeGone, NodeReported, ReportRefused
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import observed
from tests.support.virtual_services import Services

HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)
CARDS = simulated_devices("away", "2xT4")
FIRST = CARDS[:1]


def claim(driver: str = "simulated") -> NodeReported:
    """Return a report in which node `other` has the first device of node `away`."""
    return NodeReported(node="other", devices=FIRST, host=HOST, driver=driver, simulated=True)


def test_a_card_of_a_node_that_left_is_taken_and_kept_until_whoever_took_it_is_gone() -> None:
    """A node can claim a device of a removed node. If the removed node comes back, its report is
    refused until the claiming node is removed."""

    async def stolen() -> None:
        services = Services()
        await services.intake()
        for version, node in enumerate(("away", "other"), 1):
            await services.write(observed(node, version=version))
        services.agent(SimulatedNode("away", CARDS, HOST))
        await rest(1)
        assert (await services.say(claim(), "there")).refused
        await services.write(NodeGone(node="away"))
        assert (await services.say(claim(), "away")).revision is not None

        await services.write(observed("away", version=3))
        await rest(300)
        assert [each.node for each in services.written(NodeReported)] == ["away", "other"]
        told = services.written(ReportRefused)[-1]
        assert (told.node, told.cause) == ("away", "device-of-another-node")
        assert "node other" in told.message

        await services.write(NodeGone(node="other"))
        await rest(61)
        assert services.written(NodeReported)[-1].devices == CARDS
        again = await services.say(claim(driver="another"), "once more")
        assert again.refused == "device-of-another-node"

    run_virtually(stolen())
