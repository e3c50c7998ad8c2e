"""Tests that the ledger records each refused report with a cause, so that an operator knows what to
do."""

import pytest
from msgspec import structs

from apportion.intake import taking
from apportion.intake.taking import LATER_S
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


def test_a_node_over_its_budget_is_told_to_send_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a node has used its hourly budget, the intake asks its agent to send the event later. The
    ledger records the cause `too-many`, and other nodes are not affected."""
    monkeypatch.setattr(taking, "RECORDS_AN_HOUR", 2)

    async def exceed() -> None:
        services = Services()
        await services.intake()
        await services.say(REPORT, "first")
        change = DeviceHealthChanged(node="n1", device="g0", healthy=False)
        assert (await services.say(change, "second")).revision == 2
        answer = await services.say(structs.replace(change, healthy=True), "third")
        assert (answer.revision, answer.again_s) == (None, LATER_S)
        other = structs.replace(REPORT, node="n2", devices=())
        assert (await services.say(other, "other")).revision is not None
        await rest(10)
        assert [each.cause for each in services.written(ReportRefused)] == ["too-many"]
        assert len(services.written(DeviceHealthChanged)) == 1

    run_virtually(exceed())
