"""Simulated use: what the shares of a simulated fleet use of its devices."""

from itertools import pairwise

import pytest
from msgspec import structs

from apportion.agent.usage.simulating import simulated_loads
from apportion.agent.usage.uses import Counted
from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import Device, MigInstance, Share
from tests.unit.agent.usage.test_uses import MIB, claim

HOURS = [hour * 3_600.0 for hour in range(48)]


def devices(spec: str) -> dict[str, Device]:
    """Return the devices of a simulated node by id."""
    return {device.id: device for device in simulated_devices("n1", spec)}


@pytest.mark.parametrize("spec", ["2xA100-40GB", "1xAscend310P", "1xL40S-48GB:mps"])
@pytest.mark.parametrize("at_s", HOURS)
def test_no_share_and_no_device_is_overused(spec: str, at_s: float) -> None:
    """Ten shares of one device use at most what they have, and at most the device together."""
    there = devices(spec)
    device = next(iter(there.values()))
    share = Share("main", device.id, device.memory_mib // 10, device.cores // 10)
    claims = [claim(f"{pod}-uid", share) for pod in range(10)]
    loads, owners = simulated_loads(claims, there, at_s)
    look = Counted(claims, loads, owners.get).look(there, {})
    assert len(look.uses) == len(claims)
    assert not look.unshared
    for use in look.uses:
        assert use.memory_used <= use.memory_limit
        assert use.cores_used is not None
        assert use.cores_used <= max(share.cores, 1)
    assert sum(use.memory_used for use in look.uses) == loads[0].memory
    assert loads[0].memory <= device.memory_mib * MIB
    assert (loads[0].cores or 0) <= device.cores


def test_some_shares_are_busy_and_some_are_idle() -> None:
    """A user who tries it out sees busy and idle shares, and loads that change."""
    there = devices("8xH100-80GB")
    claims = [
        claim(f"{pod}-uid", Share("main", device, 81_559, 100)) for pod, device in enumerate(there)
    ]

    def cores(at_s: float) -> list[int]:
        loads, owners = simulated_loads(claims, there, at_s)
        uses = Counted(claims, loads, owners.get).look(there, {}).uses
        return [use.cores_used or 0 for use in uses]

    found = cores(0.0)
    assert 0 in found
    assert max(found) > 60
    assert any(before != after for before, after in pairwise(cores(100.0 * at) for at in range(6)))


def test_an_instance_has_its_own_load() -> None:
    """A share of a MIG instance is measured by the instance, as on a real GPU."""
    there = devices("1xA100-40GB:mig")
    (device,) = there
    cut = MigInstance(profile="3g.20gb", start=0, size=4, group="g")
    claims = [claim("1-uid", Share("main", device, 20_480, 0, cut))]
    loads, owners = simulated_loads(claims, there, 0.0)
    (use,) = Counted(claims, loads, owners.get).look(there, {}).uses
    assert (use.instance and use.instance.profile, use.memory_used) == ("3g.20gb", loads[1].memory)
    assert 0 < use.memory_used <= 20_480 * MIB


def test_a_failed_device_is_idle() -> None:
    """Nothing runs on a device that has failed."""
    there = devices("1xT4")
    (device,) = there
    there[device] = structs.replace(there[device], healthy=False, health_reason="XID 79")
    loads, owners = simulated_loads([claim("1-uid", Share("main", device, 1_000, 10))], there, 0.0)
    assert [(load.memory, load.cores) for load in loads] == [(0, 0)]
    assert not owners
