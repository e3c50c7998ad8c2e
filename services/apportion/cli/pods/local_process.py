"""A command that runs as a pod: how the pod names its process, and when it has ended.

The pod's owner says which process of which machine it is, so that any later `apportion run` there
can tell that it has ended and say so in the ledger. Invariant: nobody is called ended while its
process lives, or anything that is seen of what it started."""

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

LABEL: Final = "apportion.dev/pod"
"""Of a container: the uid of the pod that it was started for."""
_OTHER_USERS: Final = frozenset({"sudo", "su", "doas", "pkexec", "runuser"})
_ENGINE_S: Final = 30.0


class Run(Struct, frozen=True):
    """One command: where it runs, and the container engine that it is, if it is one."""

    node: str
    life: Life
    engine: str = ""

    @property
    def kind(self) -> str:
        """The kind of the pod's owner."""
        return self.engine or PROCESS

    @property
    def name(self) -> str:
        """The name of the pod's owner."""
        return f"{self.node}/{self.life.pid}/{self.life.started}"

    @classmethod
    def of_owner(cls, owner: str) -> Self | None:
        """The run that a pod's owner names; None where it is something else."""
        kind, _, name = owner.partition("/")
        node, _, life = name.partition("/")
        pid, _, started = life.partition("/")
        if not is_command(owner) or not (pid.isdecimal() and started.isdecimal()):
            return None
        return cls(node, Life(int(pid), int(started)), "" if kind == PROCESS else kind)

    def goes_on(self, pod: str, proc: Path = PROC) -> bool:
        """Whether anything of it is seen to run on this machine."""
        if lives(self.life, proc):
            return True
        if self.engine:
            return containers(self.engine, pod) != []
        return any(processes(pod, proc))


def engine_of(words: tuple[str, ...]) -> str:
    """The container engine that a command line starts a container with; empty for any other.

    Raises Wrong: the command would not get the share, as what follows `sudo` would not."""
    name = Path(words[0]).name
    if name in _OTHER_USERS:
        raise Wrong(
            f"{name} empties the environment, so that nothing would hold the command to its share; "
            f"write `{name} apportion run ...` instead, with the command alone behind it"
        )
    if name not in ENGINES:
        return ""
    if "run" not in words[1:]:
        raise Wrong(
            f"`{' '.join(words[:2])}` starts no container that could be given a share; write "
            f"`apportion run ... -- {name} run IMAGE`"
        )
    return name


def with_device(words: tuple[str, ...], device: str, pod: str) -> tuple[str, ...]:
    """The engine's command line, with the share for its container."""
    at = words.index("run", 1) + 1
    return (*words[:at], "--device", device, "--label", f"{LABEL}={pod}", *words[at:])


def processes(pod: str, proc: Path = PROC) -> Iterator[int]:
    """The ids of the command's processes, as far as they can be seen and keep their environment."""
    return (pid for pid, value in marked(MARK, proc) if value == pod)


def containers(engine: str, pod: str) -> list[str] | None:
    """The ids of the pod's containers that run; None where the engine does not say."""
    words = (engine, "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={pod}")
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=_ENGINE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.split()


def ended(pods: Iterable[PodAnswer], node: str, user: str, proc: Path = PROC) -> list[PodAnswer]:
    """Those that were commands of this machine, and have ended unnoticed.

    `user` is the namespace of this user's pods: containers of other users, and which processes are
    theirs, only root can see, so that nothing is said of them."""
    return [
        pod for pod in pods
        if (run := Run.of_owner(pod.owner)) is not None and run.node == node
        and (pod.namespace == user or os.geteuid() == 0) and not run.goes_on(pod.uid, proc)
    ]  # fmt: skip


def unreachable(path: Path) -> Path | None:
    """What keeps this user from reading a file: it, or a folder above; None where nothing does."""
    for each in (*reversed(path.parents), path):
        if not os.access(each, os.X_OK if each != path else os.R_OK):
            return each
    return None
