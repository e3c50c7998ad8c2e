"""A GPU fails while pods use it: no new pod is placed there, and the running pods get Events."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apportion_schemas import DeviceHealthChanged, PodPlaced, PodRefused, SharesAllocated
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.nvidia.driver import FakeDriver, fake_driver

FELL_OFF_THE_BUS = 79


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Provide a fake driver with the node's only GPU."""
    with fake_driver(tmp_path, "1xA100-40GB") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


async def test_a_card_that_fails_under_two_shares(world: KubeWorld, driver: FakeDriver) -> None:
    """Both pods that share a GPU get Events when the GPU fails and when it recovers.

    No service or pod has to be restarted."""
    await world.plane.apply(kube_node("n1"))
    await world.start("agent", "--node", "n1", "--xid-quiet", "20")
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    await world.plane.apply(kube_pod("a", share(4_000)), kube_pod("b", share(4_000)))
    await world.facts.count(SharesAllocated, 2)
    driver.xid(0, FELL_OFF_THE_BUS)
    (failed,) = await world.facts.count(DeviceHealthChanged, 1)
    assert (failed.healthy, failed.reason) == (False, f"XID {FELL_OFF_THE_BUS}")
    driver.fall_off(0)
    await world.plane.apply(kube_pod("c", share(4_000)))
    for name in ("a", "b"):
        await world.described(name, "DeviceFailed", f"has failed (XID {FELL_OFF_THE_BUS})")
    await world.described("c", "FailedScheduling", "device is unhealthy")
    assert len(world.facts.of(PodPlaced)) == 2
    driver.come_back(0)
    await world.bound("c")
    for name in ("a", "b"):
        await world.described(name, "DeviceRecovered", "has recovered")
    assert len(world.facts.of(PodPlaced)) == 3
    assert world.facts.of(PodRefused)[0].name == "c"
