"""Finds the pod of a process by its cgroup, and the container by its mounts.

The kubelet puts the pod's uid into the cgroup's path and mounts `pods/UID/containers/NAME/…`. Both
stay while a program runs, so the agent reads them once. A process can set its environment and its
name, so neither is trusted. Invariant: a process's pod and container are from one uid."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

_KNOWN_MAX: Final = 4_096  # cached processes; a GPU has a few dozen
# read of a file in /proc; a container has dozens of mounts of 100 bytes
_BYTES_MAX: Final = 1 << 20
_STARTED: Final = 19  # index of the start time in `stat`, after the program's name; see proc(5)
# A pod's uid. It has `_` for `-` where systemd makes the cgroups; a static pod's has neither.
_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_in_cgroup = re.compile(rf"pod({_UID})(?:\.slice)?(?:/|$)", re.MULTILINE).search
_container_in_cgroup = re.compile(
    rf"^0::(/[^\n]*?pod(?:{_UID})(?:\.slice)?/[^/\n]+)", re.MULTILINE
).search
_in_mounts = re.compile(rf"/pods/({_UID})/containers/([a-z0-9-]{{1,63}})/").finditer


class Owner(NamedTuple):
    """The owner of a process: a pod's uid and a container's name, each empty if unknown."""

    pod: str
    container: str
    inner: int  # the process id in the container
    command: str  # the program's name
    # path of the container's own cgroup (version 2), as the kernel reports it here
    cgroup: str = ""


class Owners:
    """Finds the owners of processes from a folder like `/proc`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._known: dict[int, tuple[tuple[str, str], Owner]] = {}

    def of(self, pid: int) -> Owner | None:
        """Return the owner of a process, or None if the process has ended."""
        folder = f"{self._proc}/{pid}"
        life: tuple[str, str] | None = None
        with suppress(OSError, IndexError):
            # The start time distinguishes the process from a later one with the same id.
            program, _, fields = _text(f"{folder}/stat").rpartition(")")
            life = program, fields.split()[_STARTED]
        known = self._known.get(pid)
        if life is not None and known is not None and known[0] == life:
            return known[1]
        found = self._read(folder, pid)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        if life is not None and found is not None and bool(found.pod) == bool(found.container):
            self._known[pid] = life, found
        return found

    def _read(self, folder: str, pid: int) -> Owner | None:
        try:
            status, cgroup = _text(f"{folder}/status"), _text(f"{folder}/cgroup")
            found = _in_cgroup(cgroup)
            pod = found[1].replace("_", "-") if found else ""
        except OSError:
            return None
        container = ""
        with suppress(OSError):  # it has ended, or belongs to another user
            if pod:
                mounts = _in_mounts(_text(f"{folder}/mountinfo"))
                names = {found[2] for found in mounts if found[1] == pod}
                container = names.pop() if len(names) == 1 else ""  # a contradiction proves nothing
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        ids = fields.get("NSpid", "").split() or [str(pid)]
        name = fields.get("Name", "").strip()
        # The cgroup directly below the pod's: a container may create others in its own.
        own = _container_in_cgroup(cgroup)
        return Owner(pod, container, int(ids[-1]), name, own[1] if own else "")


def _text(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path takes longer than the read
        return file.read(_BYTES_MAX).decode(errors="replace")


class Books(Protocol):
    """Finds this node's pods and their processes, for a kubelet or for `apportion run`.

    Invariant: if a pod is not listed, everything that it has on the node may be removed."""

    async def pods(self) -> set[str]:
        """Return the uids of the pods. Raises NotPrepared if they cannot be determined now."""

    def owner(self, pid: int) -> Owner | None:
        """Return the owner of a process, or None if the process has ended."""
