"""Tests of how the agent tracks running pods by their processes on a machine without a kubelet. The
processes are real."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.standalone import RunNode, Runs
from apportion.core.devices.simulating import simulated_devices
from apportion.core.grants import Edits
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.starting import End
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.lives import Life, life_of
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Host
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.unit.agent.usage.processes import UID, cgroup

PROC = Path("/proc")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Provide a process that ends when its stdin closes."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as running:
        yield running
        running.communicate()


@contextmanager
def left_behind(pod: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose environment marks it as a descendant of this pod's command."""
    environment = {**os.environ, "APPORTION_POD": pod}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env=environment) as running:
        yield running
        running.communicate()


def life(process: subprocess.Popen[bytes]) -> Life:
    """Return the process id and start time, which together identify this process."""
    found = life_of(process.pid)
    assert found is not None
    return found


async def test_a_run_stands_there_until_its_process_ends(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """The agent lists a pod as running until the pod's process ends, even if the agent restarts in
    the meantime."""
    runs = Runs(tmp_path, PROC)
    runs.begin("uid-1", life(process), in_container=False)
    assert await runs.pods() == {"uid-1"}
    again = Runs(tmp_path, PROC)
    assert again.on_host("uid-1")
    assert await again.pods() == {"uid-1"}
    process.communicate()
    assert await again.pods() == set()
    assert await Runs(tmp_path, PROC).pods() == set()


async def test_what_its_process_started_keeps_it_there(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """The agent lists a pod as running until all processes that inherited the pod's marker have
    ended."""
    runs = Runs(tmp_path, PROC)
    with left_behind("uid-of-this-test"):
        runs.begin("uid-of-this-test", life(process), in_container=False)
        process.communicate()
        assert await runs.pods() == {"uid-of-this-test"}
    assert await runs.pods() == set()


async def test_what_an_agent_cannot_see_goes_on_until_its_end_is_told(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent without root cannot see every process of another user. It therefore lists that
    user's pod as running until the pod's end is reported."""
    monkeypatch.setattr(os, "geteuid", lambda: Path(f"/proc/{process.pid}").stat().st_uid + 1)
    runs = Runs(tmp_path, PROC)
    runs.begin("uid-1", life(process), in_container=False)
    process.communicate()
    assert await Runs(tmp_path, PROC).pods() == {"uid-1"}
    runs.end("uid-1")
    assert await Runs(tmp_path, PROC).pods() == set()


async def test_a_container_outlives_who_asked_for_it(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """The agent lists a pod in a container as running until the pod's end is reported, even if the
    process that requested the container has ended."""
    runs = Runs(tmp_path, PROC)
    runs.begin("uid-1", life(process), in_container=True)
    process.communicate()
    assert await runs.pods() == {"uid-1"}
    assert not runs.on_host("uid-1")
    runs.end("uid-1")
    assert await Runs(tmp_path, PROC).pods() == set()


async def test_the_device_of_a_container_is_gone_after_its_end(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """When a container has ended, the agent removes the container's CDI device and its record. The
    devices of other containers stay."""
    places = Places(cdi=tmp_path / "cdi", state=tmp_path / "state", run=tmp_path / "run")
    ledger, clock = MemoryLedger(MemoryServer(), role="agent"), SystemClock()
    backend = SimulatedBackend(simulated_devices("n1", "1xT4"))
    async with GroupCommit(ledger) as commit:
        publisher = Publisher("agent/n1", clock, commit.append)
        node = Node("n1", backend, Host(cpu_milli=1, memory_mib=1, pods=1), publisher)
        agent = Agent([node], ledger, Metrics())
        served = RunNode(agent, node, places, metrics=Metrics(), clock=clock)
        for pod in ("uid-1", "uid-2"):
            served._runs.begin(pod, life(process), in_container=True)
            served._specifications.write([pod], Edits())
        assert len(list(places.cdi.iterdir())) == 2
        await served._answer("", msgspec.json.encode(End("uid-1")))
    (left,) = places.cdi.iterdir()
    assert "uid-2" in left.name
    assert await Runs(places.state, PROC).pods() == {"uid-2"}


def test_a_process_that_is_not_seen_here_is_refused(tmp_path: Path) -> None:
    """The agent refuses to record a process if its process id belongs to a different process on
    this machine."""
    own = life_of(os.getpid())
    assert own is not None
    runs = Runs(tmp_path, PROC)
    runs.see(own)
    with pytest.raises(NotPrepared, match="pid: host"):
        runs.begin("uid-1", Life(own.pid, own.started + 1), in_container=False)


async def test_after_a_reboot_nothing_runs(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """After a reboot the agent lists no pod that it recorded before."""
    runs = Runs(tmp_path, PROC)
    runs.begin("uid-1", life(process), in_container=True)
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    saved = tmp_path / "runs.json"
    saved.write_text(saved.read_text().replace(boot, "another"))
    assert await Runs(tmp_path, PROC).pods() == set()


async def test_a_book_that_cannot_be_read_is_left(tmp_path: Path) -> None:
    """If the agent's file of running pods is unreadable, the agent lists no pods."""
    (tmp_path / "runs.json").write_text("{")
    assert await Runs(tmp_path, PROC).pods() == set()


def test_a_process_is_its_command_s_or_an_ancestor_s(tmp_path: Path) -> None:
    """If the agent has recorded a process as a pod's command, the process's descendants belong to
    the pod, too. Other processes belong to no pod."""
    runs = Runs(tmp_path, PROC)
    with subprocess.Popen(["/bin/sh", "-c", "cat; :"], stdin=subprocess.PIPE) as shell:
        child = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
        while not child.read_text().split():
            assert shell.poll() is None
        pid = int(child.read_text().split()[0])
        before = runs.owner(pid)
        assert before is not None
        assert before.pod == ""
        runs.begin("uid-1", life(shell), in_container=False)
        owner = runs.owner(pid)
        assert owner is not None
        assert (owner.pod, owner.container, owner.inner) == ("uid-1", "run", pid)
        shell.communicate()
    assert runs.owner(pid) is None


def test_a_container_s_process_is_known_by_its_region(tmp_path: Path) -> None:
    """The agent finds the pod of a process in a container by the region folder that the process has
    mounted."""
    proc = tmp_path / "proc"
    boot = proc / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("one\n")
    for pid, mount in ((7, "uid-1_run"), (8, "uid-2_run"), (9, "uid-1_run-not")):
        folder = proc / str(pid)
        folder.mkdir()
        (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t2\n")
        (folder / "cgroup").write_text(cgroup(UID))
        (folder / "stat").write_text(f"{pid} (python) S 0 {' '.join(map(str, range(5, 53)))}\n")
        line = f"36 35 98:0 /state/shares/{mount} /usr/local/vgpu rw - ext4 /dev/root rw\n"
        (folder / "mountinfo").write_text(line)
    runs = Runs(tmp_path, proc)
    runs.begin("uid-1", Life(7, 22), in_container=True)
    owners = [runs.owner(pid) for pid in (7, 8, 9)]
    assert [owner.pod for owner in owners if owner] == ["uid-1", "", ""]
    assert [owner.cgroup for owner in owners if owner] == ["", "", ""]
