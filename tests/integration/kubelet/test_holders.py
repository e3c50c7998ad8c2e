"""The agent finds out which pods have ended, even if the kubelet reports ended pods late or has
just started."""

from collections.abc import AsyncIterator

import pytest

from apportion.agent.kubelet.holders import Holders
from apportion_schemas import NodeReported
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

NODE, GPU = "n1", "nvidia.com/gpu"


@pytest.fixture(autouse=True)
async def _agent(bus: Bus, kubelet: FakeKubelet, facts: Facts) -> AsyncIterator[None]:
    """Run an agent that is registered with the kubelet as its device plugin."""
    options = ["--node", NODE, "--simulate", "1xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options):
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 10)
        yield


@pytest.fixture
def holders(kubelet: FakeKubelet) -> Holders:
    """Return the reader with which an agent finds the kubelet's pods and their devices."""
    sockets = kubelet.folder / "pod-resources" / "kubelet.sock"
    return Holders(kubelet.folder / "device-plugins", sockets)


async def admit(kubelet: FakeKubelet, *pods: str) -> None:
    """Have the kubelet admit each pod, with one GPU slot."""
    for pod in pods:
        await kubelet.admit(pod, pod, GPU, {"main": 1})


async def test_a_pod_is_over_though_the_checkpoint_has_it(
    kubelet: FakeKubelet, holders: Holders
) -> None:
    """A pod counts as ended even if the kubelet's checkpoint, which the kubelet rewrites rarely,
    still lists the pod."""
    await admit(kubelet, "a", "b")
    await holders.look()
    assert await holders.pods() == {"a", "b"}
    kubelet.end("a")
    await holders.look()
    assert await holders.pods() == {"b"}


async def test_a_kubelet_that_has_heard_of_no_pod_yet_ends_none(
    kubelet: FakeKubelet, holders: Holders
) -> None:
    """While the kubelet lists no pods yet, no pod counts as ended."""
    await admit(kubelet, "a")
    await holders.look()
    await kubelet.stop()
    kubelet.heard = False
    await kubelet.start()
    for _ in range(2):
        await holders.look()
        assert await holders.pods() == {"a"}
    kubelet.heard = True
    await holders.look()
    kubelet.end("a")
    await holders.look()
    assert await holders.pods() == set()


async def test_a_pod_that_came_and_went_between_two_looks_is_over(
    kubelet: FakeKubelet, holders: Holders
) -> None:
    """A pod that started and ended between two regular checks counts as ended if its devices were
    looked up in between."""
    await admit(kubelet, "b")
    await holders.look()
    await admit(kubelet, "a")
    await holders.find(GPU, frozenset(kubelet.ids("a", "main")))
    kubelet.end("a")
    await holders.look()
    assert await holders.pods() == {"b"}
