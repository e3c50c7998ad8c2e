"""The books of a machine without a kubelet: which commands run inside of shares there.

`apportion run` starts a command, which is a pod of the ledger and a process of the machine with all
that it starts; or a container engine starts it. Invariant: a run stands in the books until all that
can be seen of it has ended, whatever became of who started it, of this agent or of the machine.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.usage.owners import Owner, Owners
from apportion.runtime.ledger.starting import CONTAINER, MARK
from apportion.runtime.process.lives import Life, life_of, lives, marked, parent_of
from apportion_schemas.catalogue import untoken

_SAVED: Final = "runs.json"
_CLIMBED_MAX: Final = 64
"""Generations of processes between one that uses a card and the command that began it."""
_in_mounts = re.compile(rf"/shares/([^/\s]+)_{CONTAINER}/?\s").findall


class Run(Struct, frozen=True):
    """One command. That of a container engine may end before its container does, and one that this
    agent does not see into may have started others.
    """

    life: Life
    in_container: bool
    open: bool = True


class Runs:
    """What runs here; see `Books`."""

    def __init__(self, folder: Path, proc: Path) -> None:
        self._proc = proc
        self._owners = Owners(proc)
        self._book = BootBook(folder / _SAVED, proc, Run)

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
        self._book.note(pod, Run(life, in_container, self._open(life)))

    def end(self, pod: str) -> None:
        """Strike it out. Raises OSError."""
        self._book.strike(pod)

    def on_host(self, pod: str) -> bool:
        """Whether the pod is a command of the machine itself."""
        run = self._book.entries.get(pod)
        return run is not None and not run.in_container

    async def pods(self) -> set[str]:
        """See `Books`. Of what is not seen here its guardian tells the end, or a later run does."""
        runs = self._book.entries
        over = {
            pod
            for pod, run in runs.items()
            if run.open and not run.in_container and not lives(run.life, self._proc)
        }
        if over:
            over -= await asyncio.to_thread(self._left)
        try:
            self._book.strike(*over)
        except OSError as error:
            raise NotPrepared(f"the book of commands cannot be written: {error}") from None
        return set(self._book.entries)

    def owner(self, pid: int) -> Owner | None:
        """See `Books`. No cgroup: what it is in is not the command's alone."""
        owner = self._owners.of(pid)
        if owner is None:
            return None
        pod = self._pod(pid)
        return owner._replace(pod=pod, container=CONTAINER if pod else "", cgroup="")

    def _open(self, life: Life) -> bool:
        """Whether what the command starts is seen: other users' environments only root can read."""
        own = os.geteuid()
        return own == 0 or (self._proc / str(life.pid)).stat().st_uid == own

    def _left(self) -> set[str]:
        """The pods of which some process runs, though its first one may have ended."""
        return {pod for _, pod in marked(MARK, self._proc)}

    def _pod(self, pid: int) -> str:
        by_life = {run.life: pod for pod, run in self._book.entries.items()}
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
        return next((pod for pod in pods if pod in self._book.entries), "")
