"""`apportion run -- podman run`: a real container gets its share as a CDI device.

The fake driver is mounted into the container."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.cli.test_run import LIBRARY, LOCAL, ended, pods
from tests.support.commands import Command
from tests.support.containers import BASE, Podman, alone, prepare, skip_unless_here
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

skip_unless_here()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
CDI = Path("/var/run/cdi")


class Workstation(NamedTuple):
    """A workstation with two GPUs of the fake driver, and podman."""

    up: Standalone
    driver: FakeDriver
    podman: Podman

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of a command that uses podman."""
        return self.podman.environment()

    def container(self, *words: str) -> list[str]:
        """Return the arguments of `podman run` that run `words` with the fake driver mounted."""
        given = {"APPORTION_FAKE_NVIDIA": str(self.driver.path), "LD_LIBRARY_PATH": str(built())}
        options = [f"--volume={path}:{path}" for path in (self.driver.path, built())]
        options += [f"--env={name}={value}" for name, value in given.items()]
        return ["--network=none", "--pull=never", *options, BASE, *words]


@pytest.fixture(scope="module")
def workstation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workstation]:
    """Start `apportion up` with podman and a fake driver of two T4s.

    A lock keeps other tests from removing its containers."""
    with alone(), pytest.MonkeyPatch.context() as patch:
        podman = prepare()
        driver = FakeDriver(tmp_path_factory.mktemp("driver"), "2xT4")
        driver.costs(context_mib=100)
        for name, value in driver.environment.items():
            patch.setenv(name, value)
        data = tmp_path_factory.mktemp("workstation") / "data"
        with Standalone(data, *LOCAL, "--library", LIBRARY) as up:
            yield Workstation(up.up(), driver, podman)
        driver.close()


def test_a_container_is_held_to_its_share_with_an_emptied_environment_too(
    workstation: Workstation,
) -> None:
    """A container with an empty environment is limited to its share, because HAMi-core is mounted
    into it."""
    driver, up = workstation.driver, workstation.up
    probe = driver.probe
    kept = f"APPORTION_FAKE_NVIDIA={driver.path} LD_LIBRARY_PATH={built()}"
    script = f"{probe} info alloc:1500 alloc:1500; env -i {kept} {probe} alloc:2500; exit 3"
    words = ["--memory", "2000", "--", "podman", "run", "--rm"]
    with Command(
        up, *words, *workstation.container("sh", "-c", script), environment=workstation.environment
    ) as command:
        assert command.ended() == 3, command.lines
    assert "total_mib=2000" in command.said("info")
    said = [line for line in command.lines if line.startswith("alloc")]
    assert said == [
        "alloc:1500 CUDA_SUCCESS",
        "alloc:1500 CUDA_ERROR_OUT_OF_MEMORY",
        "alloc:2500 CUDA_ERROR_OUT_OF_MEMORY",
    ]
    ended(up)


def test_a_container_in_the_background_keeps_its_share(workstation: Workstation) -> None:
    """A detached container keeps its share until it ends, although the command has returned."""
    up, podman = workstation.up, workstation.podman
    probe = str(workstation.driver.probe)
    words = ["--memory", "3000", "--", "podman", "run", "--rm", "--detach", "--interactive"]
    with Command(
        up, *words, *workstation.container(probe, "info", "hold"), environment=podman.environment()
    ) as command:
        assert command.ended() == 0, command.lines
        container = command.lines[-1]
        try:
            (pod,) = pods(up)
            specification = CDI / f"apportion-{pod.uid}.json"
            (device,) = json.loads(specification.read_bytes())["devices"]
            assert device["name"] == pod.uid
            labels = json.loads(podman.run("inspect", container))[0]["Config"]["Labels"]
            assert labels["apportion.dev/pod"] == pod.uid
            wait_until(lambda: "total_mib=3000" in podman.run("logs", container), "its share")
            assert len(pods(up)) == 1
        finally:
            podman.run("rm", "--force", container)
        ended(up)
        wait_until(lambda: not specification.exists(), "the device to be gone")


def test_who_deletes_the_pod_ends_the_container(workstation: Workstation) -> None:
    """Deleting the pod stops its container."""
    up, podman = workstation.up, workstation.podman
    probe = str(workstation.driver.probe)
    words = ["--memory", "1000", "--", "podman", "run", "--rm", "--interactive"]
    # The first process of a container ignores what it has no handler for.
    script = f"exec 3<&0; trap 'exit 9' TERM; {probe} hold <&3 & wait"
    with Command(
        up, *words, *workstation.container("bash", "-c", script), environment=podman.environment()
    ) as command:
        command.said("holding")
        (pod,) = pods(up)
        assert up.run("delete", f"{pod.namespace}/{pod.name}").returncode == 0
        assert command.ended() == 9
        label = f"label=apportion.dev/pod={pod.uid}"
        wait_until(
            lambda: not podman.run("ps", "--quiet", "--filter", label), "its container's end"
        )
