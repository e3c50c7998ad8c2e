"""Tests of how the agent finds a process's pod and container in the files of different kernels and
kubelets."""

import os
from pathlib import Path

import pytest

from apportion.agent.usage.owners import Owner, Owners
from tests.unit.agent.usage.processes import OTHER, UID, cgroup, write

OWN_CGROUP = cgroup(UID).strip().removeprefix("0::")
STATIC = "0123456789abcdef0123456789abcdef"
FORMS = {
    "cgroup v1, cgroupfs": (f"9:memory:/kubepods/burstable/pod{UID}/4f1c\n1:cpu:/\n", UID),
    "cgroup v2, cgroupfs": (f"0::/kubepods/pod{UID}/4f1c\n", UID),
    "cgroup v2, systemd": (
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-4f1c.scope\n",
        UID,
    ),
    "seen from another cgroup namespace": (f"0::/../../pod{UID}/4f1c\n", UID),
    "a static pod": (f"0::/kubepods/besteffort/pod{STATIC}/4f1c\n", STATIC),
    "a cluster in a container": (f"0::/docker/9a/kubelet/kubepods/pod{UID}/4f1c\n", UID),
    "no pod": ("0::/user.slice/user-1000.slice/session-2.scope\n", ""),
    "a name that only looks like one": ("0::/system.slice/podman-2f1d0c6e.scope\n", ""),
}


@pytest.mark.parametrize(("text", "pod"), FORMS.values(), ids=FORMS)
def test_the_pod_is_that_of_its_cgroup(tmp_path: Path, text: str, pod: str) -> None:
    """The agent finds the pod of a process in every supported cgroup path format."""
    write(tmp_path, 7, cgroups=text)
    owner = Owners(tmp_path).of(7)
    assert owner is not None
    assert owner[:4] == (pod, "", 7, "python")
    unified = [line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::")]
    assert owner.cgroup == (unified[0] if pod and unified else "")


def test_the_cgroup_is_the_containers_own(tmp_path: Path) -> None:
    """If a container has nested cgroups, the agent uses the outermost one."""
    pod = f"/kubepods/pod{UID}"
    write(tmp_path, 7, cgroups=f"0::{pod}/4f1c/init/pod{OTHER}/7\n")
    write(tmp_path, 8, cgroups=f"0::{pod}\n")
    first, second = Owners(tmp_path).of(7), Owners(tmp_path).of(8)
    assert first is not None
    assert second is not None
    assert (first.pod, first.cgroup) == (UID, f"{pod}/4f1c")
    assert (second.pod, second.cgroup) == (UID, "")


def test_the_container_is_that_of_its_mounts(tmp_path: Path) -> None:
    """The agent finds a process's container by its mounts, and its process id inside the container
    by its PID namespace."""
    write(tmp_path, 4711, uid=UID, container="main", inner=8)
    assert Owners(tmp_path).of(4711) == Owner(UID, "main", 8, "python", OWN_CGROUP)


def test_another_pods_folder_names_nobody(tmp_path: Path) -> None:
    """The agent finds the pod of a process by its cgroup, even if the process mounts another pod's
    folder."""
    write(tmp_path, 7, uid=UID, container="main")
    mounts = tmp_path / "7" / "mountinfo"
    mounts.write_text(mounts.read_text().replace(UID, OTHER))
    assert Owners(tmp_path).of(7) == Owner(UID, "", 7, "python", OWN_CGROUP)


def test_two_containers_at_once_are_none(tmp_path: Path) -> None:
    """If a process mounts the folders of two containers, the agent assigns it to the pod but to no
    container."""
    write(tmp_path, 7, uid=UID, container="main")
    mounts = tmp_path / "7" / "mountinfo"
    mounts.write_text(mounts.read_text() + mounts.read_text().replace("/main/", "/aide/"))
    assert Owners(tmp_path).of(7) == Owner(UID, "", 7, "python", OWN_CGROUP)


def test_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    """The agent finds no owner for a process that has ended."""
    assert Owners(tmp_path).of(7) is None


def test_this_process_is_found() -> None:
    """The owner lookup finds this test's own process in the machine's real /proc."""
    owner = Owners().of(os.getpid())
    assert owner is not None
    assert owner.command


def test_a_process_is_read_once_and_its_successor_again(tmp_path: Path) -> None:
    """The agent caches the owner of a process. It looks the owner up again if another process or
    program has the same id."""
    owners = Owners(tmp_path)
    write(tmp_path, 7, uid=UID, container="main", command="a b) (c", started=100)
    first = owners.of(7)
    (tmp_path / "7" / "cgroup").unlink()
    assert owners.of(7) is first
    write(tmp_path, 7, uid=OTHER, container="aide", command="a b) (c", started=101)
    assert owners.of(7) == Owner(OTHER, "aide", 7, "a b) (c", cgroup(OTHER).strip()[3:])
    write(tmp_path, 7, command="a", started=101)
    assert owners.of(7) == Owner("", "", 7, "a")


def test_a_process_whose_container_is_not_known_is_read_again(tmp_path: Path) -> None:
    """While the container of a process is unknown, the agent looks it up again each time."""
    owners = Owners(tmp_path)
    write(tmp_path, 7, uid=UID, started=100)
    assert owners.of(7) == Owner(UID, "", 7, "python", OWN_CGROUP)
    write(tmp_path, 7, uid=UID, container="main", started=100)
    assert owners.of(7) == Owner(UID, "main", 7, "python", OWN_CGROUP)
