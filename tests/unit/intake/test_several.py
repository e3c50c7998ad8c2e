"""Tests of several intakes that share the agents' requests.

An implausible change, such as the loss of all GPUs, is called a jump. An intake accepts it only if
the agent repeats it to the same intake after a hold time."""

from msgspec import structs

from apportion.core.devices.simulating import simulated_devices
from apportion.intake.taking import EARLY, HOLD_S
from apportion.runtime.files.fleets import SimulatedNode
from apportion_schemas import Device, DeviceHealthChanged, Host, NodeReported
from tests.simulation.loop import rest, run_virtually
from tests.support.virtual_services import Services

HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)
FOUR = simulated_devices("n1", "4xT4")
INTAKES = 2


def report(*devices: Device) -> NodeReported:
    return NodeReported(node="n1", devices=devices, host=HOST, driver="simulated", simulated=True)


async def several() -> Services:
    """Start two intakes that take turns, and report node n1 with four GPUs."""
    services = Services()
    for _ in range(INTAKES):
        await services.intake()
    assert (await services.say(report(*FOUR), "first")).revision == 1
    return services


def test_a_jump_that_one_intake_holds_is_not_believed_by_the_other() -> None:
    """If an agent keeps repeating the report of an implausible change, neither intake accepts it
    before the hold time is over."""

    async def asked() -> None:
        services = await several()
        steps = 30
        for step in range(steps):
            answer = await services.say(report(), f"jump-{step}")
            assert answer.held, f"believed after {step} of {steps} tries"
            await rest(EARLY * HOLD_S / steps)
        assert len(services.written(NodeReported)) == 1
        await rest(HOLD_S)
        assert (await services.say(report(), "later")).revision is not None

    run_virtually(asked())


def test_one_that_each_intake_has_seen_once_is_believed_by_neither() -> None:
    """If each of two intakes has seen the report of an implausible change only once, neither
    accepts it, even after the hold time."""

    async def seen() -> None:
        services = await several()
        assert (await services.say(report(), "by one")).held
        await rest(HOLD_S)
        assert (await services.say(report(), "by the other")).held
        assert len(services.written(NodeReported)) == 1

    run_virtually(seen())


def test_an_honest_agent_is_believed_after_one_look_more_than_there_are_intakes() -> None:
    """If a node really lost all its GPUs, the intakes hold the agent's report back once each, one
    after another. After that, the loss is recorded once."""

    async def lost() -> None:
        services = await several()
        services.agent(SimulatedNode("n1", (), HOST))
        await rest(INTAKES * HOLD_S - 0.5)
        assert len(services.written(NodeReported)) == 1
        await rest(1)
        assert services.written(NodeReported)[1:] == [report()]
        await rest(60)
        assert len(services.written(NodeReported)) == 2

    run_virtually(lost())


def test_what_is_no_jump_is_believed_at_once_by_either() -> None:
    """Each intake accepts a plausible change at once, even while it holds back an implausible
    change of the same node."""

    async def failed() -> None:
        services = await several()
        for number in range(INTAKES):
            assert (await services.say(report(), f"jump-{number}")).held
            ill = DeviceHealthChanged(node="n1", device=FOUR[number].id, healthy=False)
            assert (await services.say(ill, f"ill-{number}")).revision is not None
            fewer = structs.replace(report(*FOUR[1:]), driver=str(number))
            assert (await services.say(fewer, f"fewer-{number}")).revision is not None

    run_virtually(failed())
