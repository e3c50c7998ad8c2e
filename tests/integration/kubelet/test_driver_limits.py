"""An agent sets the driver's own memory limits on the cgroup of a container that uses a GPU."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pynvml
import pytest

from apportion_schemas import NodeReported, Share
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import Bus
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.unit.agent.usage.processes import UID, cgroup, write

NODE = "n1"
GPU = "nvidia.com/gpu"
MIB = 1 << 20
PID = 4711
USED = "apportion_container_memory_used_bytes{"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Provide a fake driver with one GPU, visible to the agent and to the test."""
    with fake_driver(tmp_path, "1xT4") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        pynvml.nvmlInit()
        yield made


@pytest.fixture
def container(kubelet: FakeKubelet) -> Path:
    """Create the container's process in the fake `/proc`, and return the container's cgroup."""
    path = cgroup(UID).strip().removeprefix("0::/")
    folder = kubelet.folder / "cgroup" / path
    folder.mkdir(parents=True)
    write(kubelet.folder / "proc", PID, uid=UID, container="main", inner=7)
    return folder


@asynccontextmanager
async def running(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, *more: str
) -> AsyncIterator[ServiceProcess]:
    """Yield a node's agent that can set the driver's memory limits and is registered with the
    kubelet."""
    folder = kubelet.folder
    options = ["--node", NODE, "--kubelet", str(folder), "--cdi", str(kubelet.cdi)]
    options += ["--state", str(folder / "state"), "--run", str(folder / "run")]
    options += ["--proc", str(folder / "proc"), "--cgroups", str(folder / "cgroup")]
    options += ["--usage-sample", "0.2", *more]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as agent:
        await agent.ready()
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 10)
        yield agent


async def begun(kubelet: FakeKubelet, facts: Facts, driver: FakeDriver) -> Share:
    """Start a pod with 700 MiB of the GPU, and in that pod a process on the GPU."""
    share = Share(container="main", device=driver.ids[0], memory_mib=700, cores=30)
    await facts.hold(UID, NODE, share)
    await kubelet.admit(UID, UID, GPU, {"main": 1})
    await kubelet.begin(UID, "main")
    driver.process(0, PID, 300, 20)
    return share


def hard_mib(driver: FakeDriver, folder: Path) -> int:
    """Return the driver's hard memory limit for the cgroup in MiB, or 0 without a limit."""
    card = pynvml.nvmlDeviceGetHandleByUUID(driver.ids[0].encode())
    told = pynvml.c_nvmlGetMemoryLimits_v1_t(bytes(folder))
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(card, told)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported):
        return 0
    return int(told.hardLimit) // MIB


async def test_the_driver_holds_a_container_to_its_share(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver, container: Path
) -> None:
    """The driver limits a container's GPU memory to its share. The limit follows each resize, even
    one that happened while the agent was down."""
    driver.memory_limits(kubelet.folder / "cgroup")
    async with running(bus, kubelet, facts) as agent:
        share = await begun(kubelet, facts, driver)
        await facts.until(lambda: hard_mib(driver, container) == 700, "the limit of the driver")
        await facts.resize(UID, NODE, Share("main", share.device, 1300, 30))
        await facts.until(lambda: hard_mib(driver, container) == 1300, "its new limit")
        await agent.kill()
        await facts.resize(UID, NODE, Share("main", share.device, 900, 30))
        await agent.start()
        await facts.until(lambda: hard_mib(driver, container) == 900, "what it missed")


async def test_a_driver_without_limits_changes_nothing(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver, container: Path
) -> None:
    """If the driver supports no memory limits, the agent logs this once, and tries again later."""
    problem = "does not support memory limits for cgroups"
    async with running(bus, kubelet, facts) as agent:
        await begun(kubelet, facts, driver)
        line = await agent.logged(problem)
        driver.memory_limits(kubelet.folder / "cgroup")
        await facts.until(lambda: hard_mib(driver, container) == 700, "the limit, after all")
        said = [each["event"] for each in agent.log if problem in str(each.get("event"))]
        assert said == [line["event"]]


async def test_it_can_be_switched_off(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver, container: Path
) -> None:
    """With `--driver-limits off` the agent sets no driver limit, although it observes the
    container's process."""
    driver.memory_limits(kubelet.folder / "cgroup")
    async with running(bus, kubelet, facts, "--driver-limits", "off") as agent:
        await begun(kubelet, facts, driver)
        await until(lambda: used(agent, 300), "a look at its process")
        driver.end_process(PID)
        driver.process(0, PID, 400)
        await until(lambda: used(agent, 400), "another look")
        assert hard_mib(driver, container) == 0


async def used(agent: ServiceProcess, mib: int) -> bool:
    """Return True if the agent's last check found that the container uses this many MiB."""
    _, text = await agent.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith(USED)]
    return any(float(line.split()[-1]) == mib * MIB for line in lines)
