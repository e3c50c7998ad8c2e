"""Test helpers that write fake /proc files in the kernel's format."""

from pathlib import Path

UID = "2f1d0c6e-7a51-4c4b-9d5e-0a8f6f1b2c3d"
OTHER = "9c1d0c6e-7a51-4c4b-9d5e-0a8f6f1b2c3d"


def cgroup(uid: str) -> str:
    """Return a cgroup v2 line as the systemd cgroup driver writes it."""
    named = uid.replace("-", "_")
    return (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{named}.slice/"
        "cri-containerd-4f1c.scope\n"
    )


def write(
    proc: Path,
    pid: int,
    *,
    uid: str = "",
    container: str = "",
    inner: int = 0,
    command: str = "python",
    cgroups: str = "",
    started: int = 0,
) -> None:
    """Write the fake /proc files of one process. `stat` is written only if `started` is given."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    ids = f"{pid}\t{inner}" if inner else f"{pid}"
    (folder / "status").write_text(f"Name:\t{command}\nState:\tS\nNSpid:\t{ids}\n")
    if started:
        fields = " ".join(str(number) for number in range(4, 22))
        (folder / "stat").write_text(f"{pid} ({command}) S {fields} {started} 1 2\n")
    (folder / "cgroup").write_text(cgroups or (cgroup(uid) if uid else "0::/user.slice\n"))
    mounts = "22 1 0:20 / /proc rw - proc proc rw\n"
    if container:
        mounts += (
            f"711 690 8:1 /var/lib/kubelet/pods/{uid}/containers/{container}/1b3c9f0a "
            "/dev/termination-log rw - ext4 /dev/sda1 rw\n"
        )
    (folder / "mountinfo").write_text(mounts)
