"""If the container runtime lacks CDI, the agent answers `Allocate` with the right pod's share."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apportion.core.devices.simulating import simulated_devices
from apportion.core.ledger.state import HANDS_OUT
from apportion_schemas import (
    AllocationFailed,
    Device,
    NodeReported,
    PodBound,
    PodGone,
    Share,
    SharesAllocated,
)
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet, Refused
from tests.support.fleet import registered
from tests.support.nats import Bus
from tests.support.old_plugin import OldPlugin
from tests.support.processes import ServiceProcess

NODE = "n1"
GPU = "nvidia.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
SEED = 15


@asynccontextmanager
async def running(bus: Bus, kubelet: FakeKubelet, facts: Facts) -> AsyncIterator[ServiceProcess]:
    """Run an agent with two GPUs and without CDI that is registered with the kubelet."""
    options = ["--node", NODE, "--simulate", "2xT4", "--kubelet", str(kubelet.folder), "--no-cdi"]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as process:
        await process.ready()
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 20)
        yield process


@pytest.fixture
async def agent(bus: Bus, kubelet: FakeKubelet, facts: Facts) -> AsyncIterator[ServiceProcess]:
    async with running(bus, kubelet, facts) as process:
        yield process


async def again(agent: ServiceProcess, kubelet: FakeKubelet) -> None:
    await agent.kill()
    await agent.start()
    await agent.ready()
    await kubelet.offered(GPU, 20)


def cards(facts: Facts) -> tuple[Device, ...]:
    report: NodeReported = facts.of(NodeReported)[0]
    return report.devices


def share(device: Device, memory_mib: int, container: str = "main") -> Share:
    return Share(container=container, device=device.id, memory_mib=memory_mib, cores=30)


async def test_allocate_gives_the_share_itself(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """Without CDI, `Allocate` returns environment and mounts, and no CDI file is written.

    The node's label in the ledger shows that CDI is missing."""
    assert agent.running
    assert facts.of(NodeReported)[0].host.labels[HANDS_OUT] == "allocate"
    card = cards(facts)[1]
    await facts.hold("a", NODE, share(card, 700))
    answer = (await kubelet.admit("a", "a", GPU, {"main": 1}))["main"]
    assert (answer.env[VISIBLE], answer.env[LIMIT]) == (card.id, "700m")
    assert "/usr/local/vgpu" in [mount.container_path for mount in answer.mounts]
    assert facts.of(SharesAllocated) == []
    assert (await kubelet.begin("a", "main"))[LIMIT] == "700m"
    await facts.count(SharesAllocated, 1)
    assert not list(kubelet.cdi.glob("*"))


async def test_each_container_has_its_own(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """Each container's `Allocate` call returns that container's own share. An init container gets
    the share of the first main container."""
    first, second = cards(facts)
    shares = (
        share(first, 500, "one"), share(first, 900, "two"), share(second, 901, "two"),
        share(second, 600, "three"),
    )  # fmt: skip
    await facts.hold("a", NODE, *shares, borrowed=(share(first, 100, "fetch"),))
    wanted = {"fetch": 1, "one": 1, "two": 2, "three": 1}
    await kubelet.admit("a", "a", GPU, wanted, init="fetch")
    await again(agent, kubelet)
    limits = {name: (await kubelet.begin("a", name))[LIMIT] for name in wanted}
    assert limits == {"fetch": "500m", "one": "500m", "two": "900m", "three": "600m"}


async def test_a_binding_that_is_late_is_waited_for(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """`Allocate` waits for the binding if the kubelet is faster than the ledger."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700), bound=False)
    admitted = asyncio.create_task(kubelet.admit("a", "a", GPU, {"main": 1}))
    await facts.write(PodBound(pod="a", node=NODE, attempt=1))
    assert (await admitted)["main"].env[LIMIT] == "700m"
    assert (await kubelet.begin("a", "main"))[LIMIT] == "700m"


async def test_who_left_before_the_kubelet_asked_is_not_meant(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """If a pod ends before the kubelet calls `Allocate`, the agent skips that pod and gives the
    next bound pod its share."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("left", NODE, share(card, 500))
    await facts.hold("a", NODE, share(card, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    assert (await kubelet.begin("a", "main"))[LIMIT] == "700m"


async def test_pods_that_another_plugin_served_do_not_wait(
    bus: Bus, kubelet: FakeKubelet, facts: Facts
) -> None:
    """A pod that got its devices from HAMi's plugin is recorded as allocated once our agent serves
    the node. Without this record the binder would bind no other pod to the node."""
    plugin = OldPlugin(GPU, 20)
    await plugin.register(kubelet.folder / "device-plugins")
    await kubelet.offered(GPU, 20)
    await kubelet.admit("old", "old", GPU, {"main": 1})
    await plugin.stop()
    await facts.write(registered(NODE, devices=simulated_devices(NODE, "2xT4")))
    await facts.hold("old", NODE, share(simulated_devices(NODE, "2xT4")[0], 500))
    async with running(bus, kubelet, facts):
        (answer,) = await facts.count(SharesAllocated, 1)
    assert answer.pod == "old"


async def test_of_whom_the_ledger_does_not_tell_gets_nothing(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """A container that the ledger does not know starts without devices. An Event names the fix."""
    assert agent.running
    answer = (await kubelet.admit("a", "a", GPU, {"main": 1}))["main"]
    assert dict(answer.env) == {VISIBLE: "void"}
    await facts.hold("a", NODE, share(cards(facts)[0], 700))
    with pytest.raises(Refused, match=r"it got no devices at Allocate.* delete the pod"):
        await kubelet.begin("a", "main")
    (failed,) = await facts.count(AllocationFailed, 1)
    assert "got no devices" in failed.message


async def test_anothers_share_never_runs(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """No pod starts with another pod's share, even if the kubelet and the binder take pods in
    different orders."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700))
    await facts.hold("b", NODE, share(card, 1300))
    for pod in ("stranger", "a"):
        await kubelet.admit(pod, pod, GPU, {"main": 1})
    with pytest.raises(Refused, match="got the devices of b/1/main"):
        await kubelet.begin("a", "main")
    assert facts.of(SharesAllocated) == []
    await kubelet.admit("b", "b", GPU, {"main": 1})
    assert (await kubelet.begin("b", "main"))[LIMIT] == "1300m"


async def test_a_container_that_was_resized_starts_again(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """If a pod was resized, its restarted container still gets the environment of the first start,
    even if the agent was killed."""
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    await kubelet.begin("a", "main")
    await facts.resize("a", NODE, share(card, 1300))
    await again(agent, kubelet)
    assert (await kubelet.begin("a", "main"))[LIMIT] == "700m"


@pytest.mark.parametrize("rounds", [15, pytest.param(50, marks=pytest.mark.nightly)])
async def test_rounds_of_two_pods_at_once(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, bus: Bus, rounds: int
) -> None:
    """Two pods placed at the same time each get their own share, even if the agent is killed before
    one of them starts."""
    chance = random.Random(SEED)
    admission = asyncio.Lock()  # a kubelet admits one pod after the other

    async def run(uid: str, memory_mib: int, *, kill: bool) -> None:
        await facts.until(lambda: uid in bound(facts), f"{uid} to be bound")
        async with admission:
            answers: dict[str, Any] = await kubelet.admit(uid, uid, GPU, {"main": 1})
            if kill:
                await again(agent, kubelet)
        assert answers["main"].env[LIMIT] == f"{memory_mib}m"
        assert (await kubelet.begin(uid, "main"))[LIMIT] == f"{memory_mib}m"

    async with ServiceProcess("binder", bus.server.url_for("binder")) as binder:
        await binder.ready()
        for number in range(rounds):
            pods = {f"{name}-{number}": chance.randrange(100, 4000) for name in "ab"}
            killed = chance.choice(list(pods)) if chance.random() < 0.15 else ""
            await facts.submit(*pods)
            await place(facts, pods, chance)
            await asyncio.gather(*(run(pod, pods[pod], kill=pod == killed) for pod in pods))
            await facts.count(SharesAllocated, 2 * number + 2)
            await facts.write(*(PodGone(uid=pod) for pod in pods))
            for pod in pods:
                kubelet.end(pod)
    assert facts.of(AllocationFailed) == []


def bound(facts: Facts) -> set[str]:
    """Return the uids of bound pods."""
    return {event.pod for event in facts.of(PodBound)}


async def place(facts: Facts, pods: dict[str, int], chance: random.Random) -> None:
    """Place each pod on a random GPU of the node."""
    for uid, memory_mib in pods.items():
        await facts.hold(uid, NODE, share(chance.choice(cards(facts)), memory_mib), bound=False)
