"""Tests of libvgpu.so, the library that limits a container to its share of a GPU, with a fake
driver.

Set `APPORTION_LIBVGPU=/path/to/libvgpu.so` to test a real HAMi-core: build it with its `build.sh`,
or with CMake as type Debug. Otherwise only a stand-in for the library is tested."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from apportion.agent.shares.regions import Kept, Regions, SharedFile
from apportion.core.grants import Grant, Held, Node, RegionPlan, grant
from apportion.core.grants.region import Region
from apportion_schemas import Device, Share
from tests.support import contained
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.polling import wait_until
from tests.support.real_kubelet import missing
from tests.support.regions import run_process

GIVEN = os.environ.get("APPORTION_LIBVGPU", "")
SPIN_S, ROUND_S, RECENT_S = 3.0, 0.2, 2.0
KERNELS_MIN = 1_500
"""Kernels of a millisecond each: an unlimited process launches this many, unless the machine
stalls."""
NVML = (
    "import pynvml as n; n.nvmlInit(); "
    "print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total >> 20)"
)


class Place(NamedTuple):
    """A node with one GPU, and the library that limits the node's containers."""

    folder: Path
    driver: FakeDriver
    node: Node
    regions: Regions
    given: dict[str, str]
    kept: dict[str, Kept]

    def share(
        self,
        pod: str,
        memory_mib: int = 700,
        cores: int = 30,
        controls: dict[str, str] | None = None,
    ) -> Grant:
        """Grant a container of `pod` a share of the GPU. Return what the agent prepares for the
        container: its mounts, environment and limits."""
        (device_id,) = self.driver.ids
        card = Device(
            id=device_id, index=0, family="nvidia", model="NVIDIA T4", memory_mib=15_360,
            physical_memory_mib=15_360, slots=10, mode="hami-core",
        )  # fmt: skip
        own, known = [Share("main", card.id, memory_mib, cores)], {card.id: card}
        held = Held.of(pod, "main", own, known, controls=controls)
        made = grant(held, self.node)
        assert made.region is not None
        self.regions.ensure(made.region, starting=True)
        self.kept[made.region.path] = Kept("default", made.region)
        return made

    def advised(self) -> list[bool]:
        """Run the agent's control round once, and return for each container whether its compute is
        limited."""
        assert not self.regions.round(self.kept.values(), time.time(), RECENT_S)
        return [region.cores_held for _, _, region in self.regions.read()]

    @property
    def probe(self) -> str:
        """Return the path of the test program that uses the GPU; see probe.c."""
        return str(self.folder / "lib" / "probe")

    def run(self, made: Grant, *command: str) -> list[str]:
        """Run a program inside the container of this grant, and return its output as lines."""
        return contained.run(made.edits, self.folder, self.given, *command)

    def start(self, stack: ExitStack, made: Grant, *command: str) -> subprocess.Popen[str]:
        """Start a program in the container of this grant. It is stopped when the stack closes."""
        return stack.enter_context(contained.holding(made.edits, self.folder, self.given, *command))


@pytest.fixture(params=["a stand-in", "libvgpu.so"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Provide a node with one GPU, once with a stand-in for libvgpu.so and once with the real
    library."""
    if request.param == "libvgpu.so" and not GIVEN:
        pytest.skip("APPORTION_LIBVGPU names no built libvgpu.so; only a stand-in was tried")
    if reason := missing():
        pytest.skip(reason)
    shutil.copytree(built(), tmp_path / "lib", symlinks=True)
    library = Path(GIVEN) if request.param == "libvgpu.so" else built() / "libstandin.so"
    shutil.copy(library, tmp_path / "libvgpu.so")
    (tmp_path / "preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    node = Node(
        shares=str(tmp_path / "shares"),
        library=str(tmp_path / "libvgpu.so"),
        preload=str(tmp_path / "preload"),
    )
    with fake_driver(tmp_path, "1xT4") as driver:
        driver.costs(context_mib=100, kernel_us=1_000)
        given = driver.environment | {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
        del given["PATH"]
        yield Place(tmp_path, driver, node, Regions(tmp_path / "shares"), given, {})


def test_B3_memory_beyond_the_share_is_refused(place: Place) -> None:
    """The library refuses an allocation beyond the share, although the GPU has room for it."""
    said = place.run(place.share("a"), place.probe, "alloc:400", "alloc:400", "alloc:200")
    assert said == [
        "context CUDA_SUCCESS",
        "alloc:400 CUDA_SUCCESS",
        "alloc:400 CUDA_ERROR_OUT_OF_MEMORY",
        "alloc:200 CUDA_SUCCESS",
    ]


def test_B3_an_empty_environment_lifts_no_limit(place: Place) -> None:
    """A process with an empty environment is still limited to its container's share.

    The library then finds the limits in HAMi-core's default region file."""
    bare = ("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in place.given.items()))
    said = place.run(place.share("a"), *bare, place.probe, "alloc:400", "alloc:400")
    assert said[-1] == "alloc:400 CUDA_ERROR_OUT_OF_MEMORY"


def test_D7_the_share_is_all_that_a_container_sees(place: Place) -> None:
    """In a container, CUDA and nvidia-smi show only the container's share of the GPU's memory."""
    made = place.share("a")
    said = place.run(made, place.probe, "alloc:400", "info")
    assert "free_mib=300 total_mib=700" in said[-1]
    assert place.run(made, sys.executable, "-c", NVML) == ["700"]


def test_a_running_container_gets_more(place: Place) -> None:
    """After its limit is raised from 700 to 1300 MiB, a running process can allocate more."""
    made = place.share("a")
    with ExitStack() as stack:
        actions = ("alloc:600", "alloc:600", "hold", "alloc:600")
        running = place.start(stack, made, place.probe, *actions)
        assert running.stdout is not None
        before = list(iter(running.stdout.readline, "holding\n"))
        assert before[-1] == "alloc:600 CUDA_ERROR_OUT_OF_MEMORY\n"
        assert made.region is not None
        assert place.regions.resize(resized(made.region, 1300))
        after, _ = running.communicate()
    assert after.splitlines() == ["hold CUDA_SUCCESS", "alloc:600 CUDA_SUCCESS"]


def resized(plan: RegionPlan, memory_mib: int) -> RegionPlan:
    return RegionPlan(plan.path, plan.devices, (memory_mib << 20,), plan.cores, plan.priority)


def test_D6_compute_is_limited_under_contention(place: Place) -> None:
    """A container's compute is limited to 30 % while another container uses the GPU, as in HAMi.

    Without other containers it is unlimited."""
    shares = [place.share(pod) for pod in "ab"]
    for _, _, region in place.regions.read():
        region.hold_cores(held=False)
    (alone,) = launched(place, shares[:1])
    together = launched(place, shares)
    assert sum(together) < 0.85 * 2 * alone, (alone, together)
    assert all(0.1 * alone < each < 0.5 * alone for each in together), (alone, together)
    wait_until(lambda: place.advised() == [False, False], "both to be let go")

    def free() -> bool:
        (again,) = launched(place, shares[:1])
        return again > 0.7 * alone

    wait_until(free, "one that is alone again to be as fast as before")


@pytest.mark.parametrize("cores", [0, 100])
def test_D6_a_container_without_a_limit_of_compute_waits_for_the_first_priority(
    place: Place, cores: int
) -> None:
    """A container without a compute limit waits while a container of priority 0 uses the GPU.

    HAMi-core itself obeys priorities only for compute limits below 100 percent."""
    high = place.share("high", cores=cores, controls={"CUDA_TASK_PRIORITY": "0"})
    low = place.share("low", cores=cores)

    def waited() -> bool:
        first, second = launched(place, [high, low])
        return first > 2 * second

    wait_until(waited, "the low one to wait for the high one")


def test_a_restarted_container_drops_its_old_processes(place: Place) -> None:
    """When a container restarts, the memory that its old processes used no longer counts against
    its limit.

    This holds even if the process ids now belong to other programs."""
    made = place.share("a")
    assert made.region is not None
    path = Path(made.region.path)
    run_process(path, inner=os.getpid(), mib=600)
    assert place.run(made, place.probe, "alloc:400")[-1] == "alloc:400 CUDA_ERROR_OUT_OF_MEMORY"
    place.regions.ensure(made.region, starting=True)
    assert place.run(made, place.probe, "alloc:400")[-1] == "alloc:400 CUDA_SUCCESS"


def test_a_limit_that_a_container_raised_is_restored_while_it_runs(place: Place) -> None:
    """If a running container raises its own limit, the agent restores the limit and reports the
    change."""
    made = place.share("a")
    assert made.region is not None
    with ExitStack() as stack:
        running = place.start(stack, made, place.probe, "alloc:400", "hold", "alloc:600")
        assert running.stdout is not None
        assert list(iter(running.stdout.readline, "holding\n"))[-1] == "alloc:400 CUDA_SUCCESS\n"
        with SharedFile(Path(made.region.path)) as file:
            Region(file).hold(resized(made.region, 14_000))
        found = place.regions.round(place.kept.values(), time.time(), RECENT_S)
        assert [each.code for each in found] == ["raised"]
        after, _ = running.communicate()
    assert after.splitlines()[-1] == "alloc:600 CUDA_ERROR_OUT_OF_MEMORY"


def launched(place: Place, shares: list[Grant]) -> list[float]:
    """Run a program in each share's container at the same time, while the agent controls the
    containers.

    Return how many GPU kernels each program launched, relative to a program without limits. If the
    machine stalls, run the programs again."""
    what = "a while in which this machine does not stand still"
    return wait_until(lambda: measured(place, shares), what)


def measured(place: Place, shares: list[Grant]) -> list[float]:
    """Return the result of `launched` from one run, or an empty list if this machine stalled."""
    with ExitStack() as stack:
        spin = f"spin:{1000 * SPIN_S:.0f}"
        running = [stack.enter_context(held_by_nobody(place, spin))]
        running += [place.start(stack, made, place.probe, spin) for made in shares]

        def over() -> bool:
            place.advised()
            return all(process.poll() is not None for process in running)

        wait_until(over, "the kernels to be launched", interval_s=ROUND_S)
        said = [process.communicate()[0] for process in running]
    whole, *parts = (int(re.findall(r"launched=(\d+)", each)[0]) for each in said)
    return [part / whole for part in parts] if whole >= KERNELS_MIN else []


def held_by_nobody(place: Place, action: str) -> subprocess.Popen[str]:
    """Start a program outside any container. It uses the GPU without limits."""
    environ = os.environ | place.driver.environment
    command = [str(place.driver.probe), action]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
