"""The agent creates and removes MIG instances and MPS shares for containers, with a fake driver in
C.

Set `APPORTION_MIG_ROUNDS=500` to start and end more pods with MIG instances."""

import asyncio
import fcntl
import os
import random
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path

import pynvml
import pytest
from click import echo
from msgspec import structs

from apportion.agent.nvidia import mig as nvml_mig
from apportion.agent.shares.share_lifecycle import DAEMON_DIED, DAEMON_STAYS_AWAY
from apportion.core.configuration.offering import NO_MPS
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.dra.names import container_of
from apportion.core.grants.mig import cut, overlap
from apportion_schemas import (
    AllocationFailed,
    Configuration,
    ConfigurationChanged,
    Device,
    DeviceHealthChanged,
    MigInstance,
    NodeReported,
    PodGone,
    Share,
    SharesAllocated,
)
from apportion_schemas.configuration import NodeConfiguration
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet, Refused, environment
from tests.support.nats import Bus
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.nvidia.probe import holding, probe
from tests.support.processes import ServiceProcess

NODE = "n1"
GPU = "nvidia.com/gpu"
ROUNDS = int(os.environ.get("APPORTION_MIG_ROUNDS", "120"))
KILLED = 0.02
BUSY = 0.3
COMPUTE_SLICES = 7
"""Of an A100; its memory has eight."""


@pytest.fixture(params=["2xA100-40GB:mig"])
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """Provide the node's fake driver. The agent's process loads the same driver."""
    with fake_driver(tmp_path, request.param) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        pynvml.nvmlInit()
        yield made
        pynvml.nvmlShutdown()


@pytest.fixture
async def agent(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> AsyncIterator[ServiceProcess]:
    """Provide the node's agent, with the GPUs of the fake driver."""
    assert driver.ids
    options = [*places(kubelet), "--mps"]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as running:
        await running.ready()
        await facts.count(NodeReported, 1)
        yield running


def places(kubelet: FakeKubelet) -> list[str]:
    """Return the command-line options that make an agent use the folders of this kubelet."""
    options = ["--node", NODE, "--kubelet", str(kubelet.folder), "--cdi", str(kubelet.cdi)]
    return [*options, "--state", f"{kubelet.folder}/state", "--run", f"{kubelet.folder}/run"]


def cards(facts: Facts) -> tuple[Device, ...]:
    report: NodeReported = facts.of(NodeReported)[-1]
    return report.devices


def on_the_card(index: int) -> set[MigInstance]:
    """Return the MIG instances that exist on a GPU."""
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    return {each.cut for each in nvml_mig.instances(card, nvml_mig.profiles(card))}


def shown(mig_id: str) -> tuple[str, MigInstance]:
    """Return the UUID of the GPU and the MIG instance that a container with this `mig_id` sees."""
    device = pynvml.nvmlDeviceGetHandleByUUID(mig_id.encode())
    card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    number = pynvml.nvmlDeviceGetGpuInstanceId(device)
    made = nvml_mig.instances(card, nvml_mig.profiles(card))
    return str(pynvml.nvmlDeviceGetUUID(card)), next(e.cut for e in made if e.id == number)


def instance_number(mig_id: str) -> int:
    """Return the number by which the driver knows the GPU instance with this `mig_id`."""
    return int(pynvml.nvmlDeviceGetGpuInstanceId(pynvml.nvmlDeviceGetHandleByUUID(mig_id.encode())))


def piece(device: Device, profile: str, start: int) -> Share:
    """Return a share for the container `main`: the device's MIG instance with this profile that
    begins at slice `start`."""
    found = next(e for e in mig_profiles("nvidia", device.model) if e.name == profile)
    instance = MigInstance(profile=profile, start=start, size=found.size)
    return Share("main", device.id, found.memory_mib, 10, instance)


def compute(share: Share) -> int:
    """Return the number of compute slices of an instance: `3g.20gb` has three."""
    assert share.instance is not None
    return int(share.instance.profile.partition("g.")[0])


# ---------------------------------------------------------------- MIG


async def test_an_instance_is_made_at_the_start_and_goes_with_the_pod(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """When the container starts, the agent creates a MIG instance at the position that the ledger
    gives. It removes the instance with the pod, and keeps it when the agent restarts."""
    _, second = cards(facts)
    await kubelet.offered(GPU, 14)
    await facts.hold("a", NODE, piece(second, "3g.20gb", 4))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    assert on_the_card(1) == set()
    env = await kubelet.begin("a", "main")
    assert shown(env["NVIDIA_VISIBLE_DEVICES"]) == (
        second.id, MigInstance(profile="3g.20gb", start=4, size=4),
    )  # fmt: skip
    assert on_the_card(0) == set()
    (allocated,) = await facts.count(SharesAllocated, 1)
    assert allocated.devices == (second.id,)
    await agent.kill()
    await agent.start()
    await agent.ready()
    await kubelet.offered(GPU, 14)
    assert await kubelet.begin("a", "main") == env
    kubelet.end("a")
    await facts.until(lambda: not on_the_card(1), "the instance to be destroyed")


async def test_an_instance_of_a_claim_is_there_until_it_is_taken_back(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """A claim's MIG instance stays until the claim is unprepared, even though the kubelet's device
    checkpoint does not list the claim's pod."""
    assert driver.ids
    async with ServiceProcess("agent", bus.server.url_for("agent"), *places(kubelet), "--dra"):
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 14)
        _, second = cards(facts)
        for pod, start in (("a", 4), ("b", 0)):
            held = structs.replace(piece(second, "3g.20gb", start), container=container_of(pod))
            await facts.hold(pod, NODE, held)
            answer = (await kubelet.prepare((pod, "default")))[pod]
            assert answer.error == ""
            (made,) = answer.devices
            assert made.device_name == f"gpu-1-mig-3g-20gb-{start}"
            (name,) = made.cdi_device_ids
            env = environment(kubelet.edits((name.partition("=")[2],)))
            assert shown(env["NVIDIA_VISIBLE_DEVICES"])[1].start == start
        await kubelet.unprepare(("b", "default"))
        left = {MigInstance(profile="3g.20gb", start=4, size=4)}
        await facts.until(lambda: on_the_card(1) == left, "the instance of b to be destroyed")
        await kubelet.unprepare(("a", "default"))
        await facts.until(lambda: not on_the_card(1), "that of a to be destroyed")


async def test_what_runs_on_an_instance_is_waited_for_and_told(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """A MIG instance with a running process stays, even if the kubelet has forgotten the pod. The
    next pod starts after the process ends."""
    assert agent.running
    card = cards(facts)[0]
    await kubelet.offered(GPU, 14)
    await facts.hold("a", NODE, piece(card, "1g.5gb", 2))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    env = await kubelet.begin("a", "main")
    driver.process(0, 4242, 100, instance=instance_number(env["NVIDIA_VISIBLE_DEVICES"]))
    kubelet.end("a")
    await facts.write(PodGone(uid="a"))
    await facts.hold("b", NODE, piece(card, "7g.40gb", 0))
    await kubelet.admit("b", "b", GPU, {"main": 1})
    with pytest.raises(Refused, match=r"1g\.5gb from slice 2 occupies slices of 7g\.40gb"):
        await kubelet.begin("b", "main")
    (failed,) = await facts.count(AllocationFailed, 1)
    assert "process" in failed.message
    driver.end_process(4242)
    env = await kubelet.begin("b", "main")
    assert shown(env["NVIDIA_VISIBLE_DEVICES"])[1].profile == "7g.40gb"
    await facts.count(SharesAllocated, 2)


class Rounds:
    """Starts and ends pods at random, and sometimes kills the agent."""

    def __init__(
        self, agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
    ) -> None:
        self.agent = agent
        self.kubelet = kubelet
        self.facts = facts
        self.driver = driver
        self.chance = random.Random(15)
        self.live: dict[str, Share] = {}
        self.working: dict[str, int] = {}
        self.kills = 0

    async def arrive(self, pod: str, share: Share) -> None:
        """Place a pod on the MIG instance of `share`, and check that its container sees that
        instance.

        Sometimes kill the agent while the container starts."""
        self.live[pod] = share
        await self.facts.hold(pod, NODE, share)
        await self.kubelet.admit(pod, pod, GPU, {"main": 1})
        start = asyncio.create_task(self.kubelet.begin(pod, "main"))
        if self.chance.random() < KILLED:
            await asyncio.sleep(0)  # lets the call begin; where it is cut off is chance
            await self.agent.kill()
            await asyncio.gather(start, return_exceptions=True)
            await self.agent.start()
            await self.agent.ready()
            await self.kubelet.offered(GPU, 14)
            self.kills += 1
            start = asyncio.create_task(self.kubelet.begin(pod, "main"))
        name = (await start)["NVIDIA_VISIBLE_DEVICES"]
        assert share.instance is not None
        assert shown(name) == (share.device, cut(share.instance)), pod
        if self.chance.random() < BUSY:
            self.working[pod] = 10_000 + len(self.facts.events)
            card = self.driver.ids.index(share.device)
            self.driver.process(card, self.working[pod], 64, instance=instance_number(name))

    async def leave(self) -> None:
        """End a pod. The pod's process ends before the kubelet releases the pod's devices."""
        pod = self.chance.choice(sorted(self.live))
        del self.live[pod]
        if pod in self.working:
            self.driver.end_process(self.working.pop(pod))
        self.kubelet.end(pod)
        await self.facts.write(PodGone(uid=pod))

    def room(self) -> Share | None:
        """Return a random MIG instance that fits on a GPU, or None."""
        found = [
            share
            for device in cards(self.facts)
            for profile in mig_profiles("nvidia", device.model)
            for start in profile.starts
            for share in [piece(device, profile.name, start)]
            if not self._taken(share)
        ]
        return self.chance.choice(found) if found else None

    def _taken(self, share: Share) -> bool:
        """Return True if the share does not fit: another pod uses its memory slices, or too few
        compute slices are free."""
        own = [other for other in self.live.values() if other.device == share.device]
        assert share.instance is not None
        crossing = any(o.instance and overlap(o.instance, share.instance) for o in own)
        return crossing or sum(map(compute, [*own, share])) > COMPUTE_SLICES


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_A2_after_any_history_the_cards_have_what_the_ledger_says(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """Pods start and end at random, and the agent is killed. In the end the GPUs have exactly the
    MIG instances of the live pods."""
    await kubelet.offered(GPU, 14)
    rounds = Rounds(agent, kubelet, facts, driver)
    for number in range(ROUNDS):
        share = rounds.room()
        if share is None or (rounds.live and rounds.chance.random() < 0.5):
            await rounds.leave()
        else:
            await rounds.arrive(f"pod-{number}", share)
    assert rounds.kills or ROUNDS < 100
    # Pods that ended without an agent are forgotten when the kubelet next allocates slots.
    await kubelet.admit("last", "last", GPU, {"main": 1})
    for index, device in enumerate(driver.ids):
        live = [each for each in rounds.live.values() if each.device == device]
        await facts.until(partial(_has, index, live), f"the instances of {live} alone")
    assert facts.of(AllocationFailed) == []
    came = len(facts.of(SharesAllocated))
    echo(f"{came} pods came and {ROUNDS - came} went, the agent was killed {rounds.kills} times")


def _has(index: int, shares: Iterable[Share]) -> bool:
    """Return True if the GPU has exactly the MIG instances of these shares."""
    return on_the_card(index) == {cut(each.instance) for each in shares if each.instance}


# ---------------------------------------------------------------- MPS


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own needs root")
@pytest.mark.parametrize("driver", ["1xT4"], indirect=True)
async def test_C3_a_card_under_mps_has_a_daemon_while_it_has_pods(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """Under MPS each container gets its own part of the GPU. The GPU's MPS daemon survives a
    restart of the agent and ends with the last pod."""
    mps = NodeConfiguration(name=NODE, operating_mode="mps")
    await facts.write(
        ConfigurationChanged(by="test", configuration=Configuration(nodeconfig=(mps,)))
    )
    await facts.until(lambda: cards(facts)[0].mode == "mps", "the card to be offered under MPS")
    (card,) = cards(facts)
    for pod, memory_mib, cores in (("large", 9_216, 60), ("small", 6_144, 40)):
        await facts.hold(pod, NODE, Share("main", card.id, memory_mib, cores))
        await kubelet.admit(pod, pod, GPU, {"main": 1})
    large = await inside(kubelet, "large")
    small = await inside(kubelet, "small")
    threads = [each["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for each in (large, small)]
    assert threads == ["60", "40"]
    await agent.kill()
    await agent.start()
    await agent.ready()
    assert facts.of(DeviceHealthChanged) == []
    with holding(driver, "alloc:8800", **large):
        said = probe(driver, "alloc:5800", "alloc:400", **small)
        assert said[1:] == ["alloc:5800 CUDA_SUCCESS", "alloc:400 CUDA_ERROR_OUT_OF_MEMORY"]
    kubelet.end("large")
    kubelet.end("small")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    await facts.until(
        lambda: pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT,
        "the card to be given back",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own needs root")
@pytest.mark.parametrize("driver", ["1xT4"], indirect=True)
async def test_C3_a_card_whose_daemon_died_is_reported(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """The agent reports a GPU with a dead MPS daemon as failed, and as healthy once the daemon runs
    again."""
    assert driver.ids
    mps = NodeConfiguration(name=NODE, operating_mode="mps")
    await facts.write(
        ConfigurationChanged(by="test", configuration=Configuration(nodeconfig=(mps,)))
    )
    await facts.until(lambda: cards(facts)[0].mode == "mps", "the card to be offered under MPS")
    (card,) = cards(facts)
    await facts.hold("a", NODE, Share("main", card.id, 9_216, 60))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    pipes = Path((await inside(kubelet, "a"))["CUDA_MPS_PIPE_DIRECTORY"])
    told = [(False, DAEMON_DIED), (True, "")]
    _kill_daemon(pipes)
    events = await facts.count(DeviceHealthChanged, 2)
    assert [(event.healthy, event.reason) for event in events] == told
    _kill_daemon(pipes)
    with (pipes / "control_lock").open("a") as lock:  # no daemon starts while another holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        (pipes / "threads").unlink()
        (*_, event) = await facts.count(DeviceHealthChanged, 3)
        assert (event.healthy, event.reason) == (False, DAEMON_STAYS_AWAY)
    (*_, event) = await facts.count(DeviceHealthChanged, 4)
    assert (event.device, event.healthy) == (card.id, True)


def _kill_daemon(pipes: Path) -> None:
    os.kill(int((pipes / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("driver", ["1xT4"], indirect=True)
async def test_C3_a_card_under_mps_is_not_offered_unless_it_is_said(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """By default the agent reports a GPU in MPS mode as unhealthy with a reason, because containers
    under MPS can stop one another."""
    assert driver.ids
    mps = NodeConfiguration(name=NODE, operating_mode="mps")
    await facts.write(
        ConfigurationChanged(by="test", configuration=Configuration(nodeconfig=(mps,)))
    )
    async with ServiceProcess("agent", bus.server.url_for("agent"), *places(kubelet)) as agent:
        await agent.ready()
        await facts.until(lambda: cards(facts)[0].mode == "mps", "the card to be in MPS mode")
        (card,) = cards(facts)
        assert (card.healthy, card.health_reason) == (False, NO_MPS)


async def inside(kubelet: FakeKubelet, pod: str) -> dict[str, str]:
    """Start the pod's container, and return its environment with the host's MPS pipe path."""
    env = await kubelet.begin(pod, "main")
    (edits,) = kubelet.edits(kubelet.ids(pod, "main"))
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    return {**env, "CUDA_MPS_PIPE_DIRECTORY": mounts[env["CUDA_MPS_PIPE_DIRECTORY"]]}
