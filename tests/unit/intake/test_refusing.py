"""Tests that the ledger records each refused report with a cause, so that an operator knows what to
do."""

from apportion_schemas import Device, DeviceHealthChanged, Host, NodeReported, ReportRefused
from tests.simulation.loop import rest, run_virtually
from tests.support.virtual_services import Services

T4 = Device(
    id="g0", index=0, family="nvidia", model="NVIDIA Tesla T4", memory_mib=15_000,
    physical_memory_mib=15_000,
)  # fmt: skip
REPORT = NodeReported(node="n1", devices=(T4,), host=Host(cpu_milli=1, memory_mib=1, pods=1))


def test_a_card_that_fails_and_recovers_all_the_time_is_flapping() -> None:
    """If a device's health changes too often, the intake refuses further changes with the cause
    `flapping`."""

    async def flap() -> None:
        services = Services()
        await services.intake()
        taken = 0
        await services.say(REPORT, "first")
        for number in range(200):
            change = DeviceHealthChanged(node="n1", device="g0", healthy=number % 2 > 0)
            taken += (await services.say(change, str(number))).revision is not None
        assert 120 < taken < 140
        await rest(10)
        assert [each.cause for each in services.written(ReportRefused)] == ["flapping"]
        assert (await services.say(REPORT, "again")).revision is not None

    run_virtually(flap())
