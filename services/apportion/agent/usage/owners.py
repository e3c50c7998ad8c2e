"""Whose a process is, as the kernel tells it: its pod by its cgroup, its container by its mounts.

What a process says of itself (its environment, its name) is not asked, for it may say what it
likes. The kubelet puts every container into a cgroup with the uid of its pod in its path, and
mounts a file from that container's folder (`pods/UID/containers/NAME/…`) into it. Neither changes
while a program runs, so both are read once for each. Invariant: a container is named only with a
pod, and both by the same uid."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

_KNOWN_MAX: Final = 4_096
"""Processes that are remembered; a card has a few dozen."""
_BYTES_MAX: Final = 1 << 20
"""Of a file below /proc; a container has a few dozen mounts, of a hundred bytes each."""
_STARTED: Final = 19
"""Of the fields of `stat` behind the program's name; see proc(5)."""
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
    `cgroup` is the path of the container's own cgroup of version 2, as the kernel says it here."""

    pod: str
    container: str
    inner: int
    command: str
    cgroup: str = ""


class Owners:
    """The processes below one folder like `/proc`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._known: dict[int, tuple[tuple[str, str], Owner]] = {}

    def of(self, pid: int) -> Owner | None:
        """Whose the process is; None where there is no such process, or not any more."""
        folder = f"{self._proc}/{pid}"
        life = _life(folder)
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
        with suppress(OSError):  # it has ended, or is another user's and we may not look
            container = _container(_text(f"{folder}/mountinfo"), pod) if pod else ""
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        ids = fields.get("NSpid", "").split() or [str(pid)]
        name = fields.get("Name", "").strip()
        # The cgroup right below the pod's: a container may make others in its own.
        own = _container_in_cgroup(cgroup)
        return Owner(pod, container, int(ids[-1]), name, own[1] if own else "")


def _container(mounts: str, pod: str) -> str:
    """Of the first mount that says so; none where two contradict each other."""
    names = {found[2] for found in _in_mounts(mounts) if found[1] == pod}
    return names.pop() if len(names) == 1 else ""


def _life(folder: str) -> tuple[str, str] | None:
    """What tells a process from a later one of its number: its program and when it started."""
    try:
        program, _, fields = _text(f"{folder}/stat").rpartition(")")
        return program, fields.split()[_STARTED]
    except (OSError, IndexError):
        return None


def _text(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path takes longer than the read
        return file.read(_BYTES_MAX).decode(errors="replace")


class Books(Protocol):
    """What knows the pods of this node and their processes: a kubelet, or our own list of runs.

    Invariant: a pod that is not in the books uses nothing on the node that could be taken away."""

    async def pods(self) -> set[str]:
        """Their uids. Raises NotPrepared where nobody can tell now."""

    def owner(self, pid: int) -> Owner | None:
        """Whose a process is; None where it has ended."""
