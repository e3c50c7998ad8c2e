"""The books of a machine without a kubelet: which commands run inside of shares there.

`apportion run` starts a command, which is a pod of the ledger and a process of the machine with all
that it starts; or a container engine starts it. Invariant: a run stands in the books until all that
can be seen of it has ended, whatever became of who started it, of this agent or of the machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.usage.owners import Owner, Owners
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.ledger.starting import CONTAINER, MARK
from apportion.runtime.process.lives import Life, life_of, lives, marked, parent_of
from apportion_schemas.catalogue import untoken

_SAVED: Final = "runs.json"
_CLIMBED_MAX: Final = 64
"""Generations of processes between one that uses a card and the command that began it."""
_BOOT: Final = "sys/kernel/random/boot_id"
_in_mounts = re.compile(rf"/shares/([^/\s]+)_{CONTAINER}/?\s").findall

_log = logging.getLogger(__name__)


class Run(Struct, frozen=True):
    """One command. That of a container engine may end before its container does."""

    life: Life
    in_container: bool


class _Book(Struct):
    """The file: runs by pod, all of one boot of the machine."""

    boot: str
    runs: dict[str, Run] = {}


class Runs:
    """What runs here; see `Books`."""

    def __init__(self, folder: Path, proc: Path) -> None:
        """Raises OSError where there is no such folder, or `proc` is none of the kernel's."""
        self._path = folder / _SAVED
        self._proc = proc
        self._owners = Owners(proc)
        self._book = self._restored()

    def see(self, life: Life) -> None:
        """Raises NotPrepared where there is no such process on this machine."""
        if not lives(life, self._proc):
            raise NotPrepared(
                f"process {life.pid} is not on this machine as its agent sees it: start the "
                "command outside of containers, and an agent in a container with the machine's "
                "processes (`pid: host`)"
            )

    def begin(self, pod: str, life: Life, *, in_container: bool) -> None:
        """Put a command into the books.

        Raises:
            NotPrepared: there is no such process.
            OSError: the books cannot be written.
        """
        self.see(life)
        self._book.runs[pod] = Run(life, in_container)
        self._save()

    def end(self, pod: str) -> None:
        """Strike it out. Raises OSError."""
        if self._book.runs.pop(pod, None) is not None:
            self._save()

    def on_host(self, pod: str) -> bool:
        """Whether the pod is a command of the machine itself."""
        run = self._book.runs.get(pod)
        return run is not None and not run.in_container

    async def pods(self) -> set[str]:
        """See `Books`. A container's end its guardian tells, or the next `apportion run`."""
        runs = self._book.runs
        over = {
            pod
            for pod, run in runs.items()
            if not run.in_container and not lives(run.life, self._proc)
        }
        if over:
            over -= await asyncio.to_thread(self._left)
        for pod in over:
            runs.pop(pod, None)  # the file may still name it: it is read the same way
        return set(runs)

    def owner(self, pid: int) -> Owner | None:
        """See `Books`."""
        owner = self._owners.of(pid)
        if owner is None:
            return None
        pod = self._pod(pid)
        return owner._replace(pod=pod, container=CONTAINER if pod else "")

    def _left(self) -> set[str]:
        """The pods of which some process runs, though its first one may have ended."""
        return {pod for _, pod in marked(MARK, self._proc)}

    def _pod(self, pid: int) -> str:
        by_life = {run.life: pod for pod, run in self._book.runs.items()}
        named = self._mounted(pid)
        for _ in range(_CLIMBED_MAX):
            life = life_of(pid, self._proc)
            if named or life is None:
                return named
            named = by_life.get(life, "")
            pid = parent_of(pid, self._proc)
        return named

    def _mounted(self, pid: int) -> str:
        """The pod whose folder is mounted into its container: engines start it, not the command."""
        try:
            mounts = (self._proc / str(pid) / "mountinfo").read_text("utf-8", "replace")
        except OSError:
            return ""
        pods = map(untoken, _in_mounts(mounts))
        return next((pod for pod in pods if pod in self._book.runs), "")

    def _restored(self) -> _Book:
        boot = (self._proc / _BOOT).read_text("ascii").strip()
        try:
            book = msgspec.json.decode(self._path.read_bytes(), type=_Book)
        except FileNotFoundError:
            return _Book(boot)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read, so no command is known to run: %s", self._path, error)
            return _Book(boot)
        return book if book.boot == boot else _Book(boot)

    def _save(self) -> None:
        write_whole(self._path, msgspec.json.encode(self._book))
