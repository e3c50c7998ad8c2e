"""Whose a process is, as the kernel tells it: its pod by its cgroup, its container by its mounts.

What a process says of itself (its environment, its name) is not asked, for it may say what it
likes. The kubelet puts every container into a cgroup with the uid of its pod in its path, and
mounts a file from that container's folder (`pods/UID/containers/NAME/…`) into it. Invariant: a
container is named only with a pod, and both by the same uid.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_BYTES_MAX: Final = 1 << 20
"""Of a file below /proc; a container has a few dozen mounts, of a hundred bytes each."""
_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod, with `_` for `-` where systemd makes the cgroups; of a static pod without either."""
_in_cgroup = re.compile(rf"pod({_UID})(?:\.slice)?(?:/|$)", re.MULTILINE).search
_container_in_cgroup = re.compile(
    rf"^0::(/[^\n]*?pod(?:{_UID})(?:\.slice)?/[^/\n]+)", re.MULTILINE
).search
_in_mounts = re.compile(rf"/pods/({_UID})/containers/([a-z0-9-]{{1,63}})/").finditer


class Owner(NamedTuple):
    """The uid of its pod and the name of its container, each empty where it has none.

    `inner` is the process's own id in its container, and `command` the name of its program.
    `cgroup` is the path of the container's own cgroup of version 2, as the kernel says it here.
    """

    pod: str
    container: str
    inner: int
    command: str
    cgroup: str = ""


class Owners:
    """The processes below one folder like `/proc`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def of(self, pid: int) -> Owner | None:
        """Whose the process is; None where there is no such process, or not any more."""
        folder = self._proc / str(pid)
        try:
            status, cgroup = _text(folder / "status"), _text(folder / "cgroup")
            found = _in_cgroup(cgroup)
            pod = found[1].replace("_", "-") if found else ""
        except OSError:
            return None
        container = ""
        with suppress(OSError):  # it has ended, or is another user's and we may not look
            container = _container(_text(folder / "mountinfo"), pod) if pod else ""
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        ids = fields.get("NSpid", "").split() or [str(pid)]
        name = fields.get("Name", "").strip()
        return Owner(pod, container, int(ids[-1]), name, _of_container(cgroup))


def _of_container(cgroup: str) -> str:
    """The cgroup right below the pod's: a container may make others in its own."""
    found = _container_in_cgroup(cgroup)
    return found[1] if found else ""


def _container(mounts: str, pod: str) -> str:
    """Of the first mount that says so; none where two contradict each other."""
    names = {found[2] for found in _in_mounts(mounts) if found[1] == pod}
    return names.pop() if len(names) == 1 else ""


def _text(path: Path) -> str:
    """Raises OSError."""
    with path.open("rb") as file:
        return file.read(_BYTES_MAX).decode(errors="replace")
