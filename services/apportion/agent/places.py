"""Where the kubelet, container runtimes and this agent have their files on a node."""

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
_FOR_CONTAINERS: Final = b"system_u:object_r:container_file_t:s0\0"
_log = logging.getLogger(__name__)
_GLIBC: Final = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?=[.\0])")
_SYS_ADMIN: Final = 21
"""The number of CAP_SYS_ADMIN; see capabilities(7)."""


class Places(Struct, frozen=True):
    """Where the kubelet, the runtimes and we have our files on this node.

    Without a `kubelet`, commands of this machine get shares.

    They are the same paths in the agent's container as on the node: runtimes read them too. What is
    below `state` outlives a reboot, what is below `run` does not. `mps_launcher` are the words
    before a command that starts an MPS daemon. `npu_library` is the folder of `hami-vnpu-core`.
    `metrics_as`: containers' use is told under these systems' names as well as under ours. `proc`
    is where the kernel tells of the node's processes. What is used is looked at every `sample_s`
    seconds, and written into the ledger every `record_s`. `dra`: the kubelet also asks for claims
    here. `driver_limits`: the driver, too, holds containers to their memory, by their cgroups below
    `cgroups`. `no_cdi`: the container runtime knows no CDI, so that containers get what is theirs
    when the kubelet admits their pod. `static_cdi` is where people keep CDI specifications that
    outlive a reboot. `priority_namespaces` are those whose containers of priority 0 go before
    containers of other namespaces, and `unheld_namespaces` those whose containers may decline
    HAMi-core; `*` is all of them. `mps_offered`: pods share cards in MPS mode."""

    cdi: Path
    state: Path
    run: Path
    kubelet: Path | None = None
    library: Path | None = None
    npu_library: Path | None = None
    mps_launcher: tuple[str, ...] = ()
    metrics_as: tuple[Names, ...] = ()
    proc: Path = Path("/proc")
    sample_s: float = 5.0
    record_s: float = 3_600.0
    dra: bool = False
    driver_limits: bool = True
    cgroups: Path = Path("/sys/fs/cgroup")
    no_cdi: bool = False
    static_cdi: Path = Path("/etc/cdi")
    priority_namespaces: tuple[str, ...] = ()
    unheld_namespaces: tuple[str, ...] = ()
    mps_offered: bool = False

    def may_be_unheld(self, namespace: str) -> bool:
        """Whether containers of this namespace may decline HAMi-core."""
        return not {"*", namespace}.isdisjoint(self.unheld_namespaces)

    @property
    def mps(self) -> Path:
        """The folders of MPS daemons: their memory is shared through files in it."""
        return self.run / "mps"

    @property
    def preload(self) -> Path:
        """What becomes `/etc/ld.so.preload` of containers."""
        return self.state / "ld.so.preload"

    def of_grants(self) -> grants.Node:
        """The places that grants name, on the node."""
        return grants.Node(
            shares=str(self.state / "shares"),
            mps=str(self.mps),
            library=str(self.library) if self.library else "",
            preload=str(self.preload) if self.library else "",
            npu_library=str(self.npu_library) if self.npu_library else "",
            npus=str(self.run / "npus"),
        )


def may_administer(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has CAP_SYS_ADMIN, which the driver takes for being root.

    Source: `CapEff` of proc(5). Where it cannot be read the driver is left to answer."""
    try:
        lines = status.read_text("ascii").splitlines()
        effective = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> _SYS_ADMIN & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return True


def needed_glibc(library: Path) -> str:
    """The newest version of glibc that a shared library needs, as `2.34`; empty if not known.

    The loader of an image with an older one ignores the library. Source: the names of versions that
    a symbol is bound to, in the section `.dynstr`."""
    try:
        found = _GLIBC.findall(library.read_bytes())
    except OSError:
        return ""
    return "2." + str(max(map(int, found))) if found else ""


def label_for_containers(
    paths: Iterable[Path], selinux: Path = Path("/sys/fs/selinux/enforce")
) -> None:
    """Let containers use these files and folders where SELinux is on (`selinux` exists).

    What is made in a labelled folder later inherits the label. Source: NVIDIA's device plugin,
    which labels what it gives to containers `container_file_t`."""
    if not selinux.exists():
        return
    for path in paths:
        try:
            os.setxattr(path, _SELINUX, _FOR_CONTAINERS)
        except OSError as error:
            _log.warning(
                "%s: containers may not use it: the SELinux label container_file_t cannot be set "
                "(%s); set agent.seLinuxType of the chart to a type that may relabel files",
                path,
                error,
            )
