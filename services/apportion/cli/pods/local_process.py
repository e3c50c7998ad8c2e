"""Track a command that runs as a pod. The pod's `owner` identifies the process and the machine.

Invariant: a pod is reported as ended only when none of its processes is visible any more."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from apportion.cli.exits import Wrong
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.ledger.starting import ENGINES, MARK, PROCESS, is_command
from apportion.runtime.process.lives import PROC, Life, lives, marked

LABEL: Final = "apportion.dev/pod"  # label of a container: the uid of its pod
_OTHER_USERS: Final = frozenset({"sudo", "su", "doas", "pkexec", "runuser"})
_ENGINE_S: Final = 30.0


class Run(Struct, frozen=True):
    """A command on this machine: its node and process, and its container engine, if any."""

    node: str
    life: Life
    engine: str = ""

    @property
    def kind(self) -> str:
        """Return the kind of the pod's owner: the container engine, or a process."""
        return self.engine or PROCESS

    @property
    def name(self) -> str:
        """Return the name of the pod's owner: node, process id and start time of the command."""
        return f"{self.node}/{self.life.pid}/{self.life.started}"

    @classmethod
    def of_owner(cls, owner: str) -> Self | None:
        """Parse the run from a pod's owner; return None for any other owner."""
        kind, _, name = owner.partition("/")
        node, _, life = name.partition("/")
        pid, _, started = life.partition("/")
        if not is_command(owner) or not (pid.isdecimal() and started.isdecimal()):
            return None
        return cls(node, Life(int(pid), int(started)), "" if kind == PROCESS else kind)

    def goes_on(self, pod: str, proc: Path = PROC) -> bool:
        """Return True if any process or container of the pod's command still exists here."""
        if lives(self.life, proc):
            return True
        if self.engine:
            return containers(self.engine, pod) != []
        return any(processes(pod, proc))


def engine_of(words: tuple[str, ...]) -> str:
    """Return the container engine that the command starts, or "". Raises Wrong for `sudo`."""
    name = Path(words[0]).name
    if name in _OTHER_USERS:
        raise Wrong(
            f"{name} clears the environment, so the share would not be enforced; write `{name} "
            "apportion run -- COMMAND` instead"
        )
    if name not in ENGINES:
        return ""
    if "run" not in words[1:]:
        raise Wrong(
            f"`{' '.join(words[:2])}` is not supported; write `apportion run ... -- {name} run "
            "IMAGE`"
        )
    return name


def with_device(words: tuple[str, ...], device: str, pod: str) -> tuple[str, ...]:
    """Return the container engine's command line with the share added as a device."""
    at = words.index("run", 1) + 1
    return (*words[:at], "--device", device, "--label", f"{LABEL}={pod}", *words[at:])


def processes(pod: str, proc: Path = PROC) -> Iterator[int]:
    """Yield the visible process ids of the pod's command."""
    return (pid for pid, value in marked(MARK, proc) if value == pod)


def containers(engine: str, pod: str) -> list[str] | None:
    """Return the pod's running containers, or None if the engine does not answer."""
    words = (engine, "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={pod}")
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=_ENGINE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.split()


def ended(pods: Iterable[PodAnswer], node: str, user: str, proc: Path = PROC) -> list[PodAnswer]:
    """Return the pods whose commands on this machine have ended, but which are live in the ledger.

    `user` is the namespace of this user's pods; only root can see the processes of other users."""
    return [
        pod for pod in pods
        if (run := Run.of_owner(pod.owner)) is not None and run.node == node
        and (pod.namespace == user or os.geteuid() == 0) and not run.goes_on(pod.uid, proc)
    ]  # fmt: skip


def unreachable(path: Path) -> Path | None:
    """Return the outermost part of `path` that this user cannot access, or None."""
    for each in (*reversed(path.parents), path):
        if not os.access(each, os.X_OK if each != path else os.R_OK):
            return each
    return None
