"""Tests of simulated devices: how a description such as `8xT4` is parsed, and how device health
changes."""

import asyncio

import pytest

from apportion.agent.simulated import DeviceUnknown, SimulatedBackend
from apportion.core.devices.simulating import Model, SimulationInvalid, models, simulated_devices
from apportion_schemas import Host, NodeReported, decode, encode
from tests.unit.agent.events import event_of


def test_a_mixed_node() -> None:
    """A description of devices may list several models. Each device gets its model's mode and
    slots, and an index of its own."""
    devices = simulated_devices("n1", "2xA100-40GB:mig + 1xT4:mps+1xAscend310P")
    assert [d.index for d in devices] == [0, 1, 2, 3]
    assert [d.mode for d in devices] == ["mig", "mig", "mps", "vnpu"]
    assert [d.model for d in devices[1:3]] == ["NVIDIA A100-SXM4-40GB", "NVIDIA Tesla T4"]
    assert [d.slots for d in devices] == [7, 7, 10, 7]
    assert [d.cores for d in devices] == [100, 100, 100, 8]
    assert devices[3].family == "ascend310p"
    assert devices[3].id.startswith("NPU-")


def test_models_are_found_in_any_case() -> None:
    """The names of GPU models in a description of simulated devices are case-insensitive."""
    upper, lower = (simulated_devices("n", each)[0] for each in ("1xH100-80GB", "1xh100-80gb"))
    assert lower == upper
    assert "H100" in lower.model


def test_ids_depend_on_node_and_index_alone() -> None:
    """A simulated device's id depends only on its node and index. It therefore survives a restart
    or a change of mode."""
    first = simulated_devices("n1", "2xA100-40GB")
    assert [d.id for d in first] == [d.id for d in simulated_devices("n1", "2xA100-40GB:mig")]
    others = simulated_devices("n2", "2xA100-40GB")
    assert len({d.id for d in (*first, *others)}) == 4
    assert first[0].id == "GPU-70762cc3-4632-502a-4cf8-3e426bd51ca3"


def test_nvlink_joins_like_with_like() -> None:
    """Simulated GPUs of the same model are NVLink peers. GPUs of different models are not."""
    h100, other, t4 = simulated_devices("n", "2xH100-80GB+1xT4")
    assert h100.nvlink_lanes == {other.id: 18}
    assert not t4.nvlink_lanes


def test_numa_from_four_cards_on() -> None:
    """A simulated node with eight GPUs has two NUMA nodes. A node with two GPUs has one."""
    assert [d.numa for d in simulated_devices("n", "8xT4")] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {d.numa for d in simulated_devices("n", "2xT4")} == {0}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("", "is not valid"),
        ("8H100-80GB", "is not valid"),
        ("0xT4", "count of 1 or more"),
        ("-1xT4", "is not valid"),
        ("1xT4:", "is not valid"),
        ("1xT4++1xT4", "is not valid"),
        ("1xH10", "use H100-80GB"),
        ("1xT4:mig", "use hami-core, mps, exclusive"),
        ("1xAscend310P:mps", "use vnpu, hami-core, exclusive"),
        ("65xT4", "more than 64 devices"),
        ("9999xT4", "more than 64 devices"),
        ("99999xT4", "more than 64 devices"),
        ("1xT4+" * 500, "at most 1024"),
    ],
)
def test_bad_descriptions_name_the_fix(spec: str, named: str) -> None:
    """If a description of simulated devices is invalid, the error says what to write."""
    with pytest.raises(SimulationInvalid, match=named):
        simulated_devices("n", spec)


@pytest.mark.parametrize("name", models())
def test_every_model_makes_a_device_that_the_ledger_takes(name: str) -> None:
    """For every simulated model and mode, a report of 64 such devices can be encoded and decoded
    without a change."""
    for mode in models()[name].modes:
        report = NodeReported(
            node="n",
            devices=simulated_devices("n", f"64x{name}:{mode}"),
            host=Host(cpu_milli=1, memory_mib=1),
        )
        wire = encode(event_of(report))
        assert decode(wire, subject="apportion.v1.inventory.n").data == report


async def test_fail_and_recover_wake_the_reporter() -> None:
    """A simulated failure or recovery wakes the task that waits to report changes."""
    backend = SimulatedBackend(simulated_devices("n", "2xT4"))
    first, second = await backend.inventory()
    backend.set_health(first.id, healthy=False, reason="fan broken")
    await asyncio.wait_for(backend.changed(), 1)
    failed, untouched = await backend.inventory()
    assert (failed.healthy, failed.health_reason) == (False, "fan broken")
    assert untouched == second
    backend.set_health(first.id, healthy=True)
    await asyncio.wait_for(backend.changed(), 1)
    assert await backend.inventory() == (first, second)


async def test_a_command_for_a_device_elsewhere_is_refused() -> None:
    """A command that sets the health of an unknown device is refused with a list of the node's
    devices."""
    backend = SimulatedBackend(simulated_devices("n", "1xT4"))
    with pytest.raises(DeviceUnknown, match=r"GPU-x.*devices: GPU-"):
        backend.set_health("GPU-x", healthy=False)


async def test_restored_failures() -> None:
    """A restarted simulation restores which devices were unhealthy. It ignores devices that no
    longer exist."""
    devices = simulated_devices("n", "2xT4")
    before = SimulatedBackend(devices)
    before.set_health(devices[1].id, healthy=False, reason="fan broken")
    known = (*await before.inventory(), *simulated_devices("gone", "1xT4"))
    after = SimulatedBackend(devices)
    after.restore(known)
    assert await after.inventory() == await before.inventory()


def test_the_scarcest_resource_bounds_what_a_card_is_cut_into() -> None:
    """The number of vNPU slots of an NPU is limited by the resource that runs out first, even if
    there is plenty of memory."""
    roomy = {
        family: Model(model="x", family=family, memory_mib=1 << 20).slots("vnpu")
        for family in ("ascend310p", "ascend910a")
    }
    assert roomy == {"ascend310p": 7, "ascend910a": 15}
