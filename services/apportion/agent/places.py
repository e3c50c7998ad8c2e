"""Paths and settings of an agent on its node."""

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from apportion.agent.usage.names import Names
from apportion.core import grants

_SELINUX: Final = "security.selinux"
_FOR_CONTAINERS: Final = b"system_u:object_r:container_file_t:s0\0"  # as NVIDIA's device plugin
_log = logging.getLogger(__name__)
_GLIBC: Final = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?=[.\0])")
_SYS_ADMIN: Final = 21  # the number of CAP_SYS_ADMIN; see capabilities(7)


class Places(Struct, frozen=True):
    """Paths and settings of the kubelet, the container runtimes and this agent on the node.

    Paths are the same in the agent's container as on the node, because runtimes read them too."""

    cdi: Path
    state: Path  # survives a reboot
    run: Path  # does not survive a reboot
    kubelet: Path | None = None  # without one, commands of this machine get the shares
    library: Path | None = None
    npu_library: Path | None = None  # the folder of `hami-vnpu-core`
    mps_launcher: tuple[str, ...] = ()  # put before the command that starts an MPS daemon
    metrics_as: tuple[Names, ...] = ()  # also export use under these systems' metric names
    proc: Path = Path("/proc")
    sample_s: float = 5.0  # how often use is sampled
    record_s: float = 3_600.0  # how often use is recorded in the ledger
    dra: bool = False  # the kubelet also prepares ResourceClaims
    driver_limits: bool = True  # the driver, too, limits memory, by the cgroups below `cgroups`
    cgroups: Path = Path("/sys/fs/cgroup")
    no_cdi: bool = False  # no CDI in the runtime: hand out shares when the kubelet admits the pod
    static_cdi: Path = Path("/etc/cdi")  # the operator's own CDI specifications
    # their priority 0 precedes pods elsewhere; `*` is all
    priority_namespaces: tuple[str, ...] = ()
    unheld_namespaces: tuple[str, ...] = ()  # their containers may decline HAMi-core; `*` is all
    mps_offered: bool = False  # offer devices in MPS mode

    def may_be_unheld(self, namespace: str) -> bool:
        """Return True if containers of this namespace may opt out of HAMi-core."""
        return not {"*", namespace}.isdisjoint(self.unheld_namespaces)

    @property
    def mps(self) -> Path:
        """Return the folder of the files through which MPS daemons and clients communicate."""
        return self.run / "mps"

    @property
    def preload(self) -> Path:
        """Return the file that containers mount as `/etc/ld.so.preload`."""
        return self.state / "ld.so.preload"

    def of_grants(self) -> grants.Node:
        """Return the paths on the node that a container may be granted."""
        return grants.Node(
            shares=str(self.state / "shares"),
            mps=str(self.mps),
            library=str(self.library) if self.library else "",
            preload=str(self.preload) if self.library else "",
            npu_library=str(self.npu_library) if self.npu_library else "",
            npus=str(self.run / "npus"),
        )


def may_administer(status: Path = Path("/proc/self/status")) -> bool:
    """Return True if this process has CAP_SYS_ADMIN (`CapEff` of proc(5)) or if that is unknown."""
    try:
        lines = status.read_text("ascii").splitlines()
        effective = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> _SYS_ADMIN & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return True


def needed_glibc(library: Path) -> str:
    """Return the newest glibc version that a library needs, such as `2.34`, or "".

    In an image with an older glibc, the loader ignores the library."""
    try:
        found = _GLIBC.findall(library.read_bytes())
    except OSError:
        return ""
    return "2." + str(max(map(int, found))) if found else ""


def label_for_containers(
    paths: Iterable[Path], selinux: Path = Path("/sys/fs/selinux/enforce")
) -> None:
    """Label the paths so that SELinux lets containers use them. New files inherit the label."""
    if not selinux.exists():
        return
    for path in paths:
        try:
            os.setxattr(path, _SELINUX, _FOR_CONTAINERS)
        except OSError as error:
            _log.warning(
                "%s: containers cannot use it, because setting SELinux label container_file_t "
                "failed (%s); set agent.seLinuxType of the chart to a type that may relabel files",
                path,
                error,
            )
