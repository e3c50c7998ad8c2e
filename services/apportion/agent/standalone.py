"""The agent on a machine without a kubelet, where `apportion run` starts commands.

A run is a command with all its processes, represented by a pod. Invariants: `apportion run` gets
its answer only once everything that the share needs exists. The agent keeps the record of a run
until every visible process has ended, even across restarts of the command, agent or machine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.cdi import VENDORS, Specifications, device_name
from apportion.agent.kubelet.port import Holder, NotPrepared
from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.shares.share_lifecycle import ShareLifecycle
from apportion.agent.usage.owners import Owner, Owners
from apportion.core.grants import Edits
from apportion.core.grants.on_host import on_host, unheld
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.ledger.starting import (
    CONTAINER,
    MARK,
    End,
    Greet,
    Start,
    Started,
    subject_of,
)
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.lives import Life, life_of, lives, marked, parent_of
from apportion.runtime.process.metrics import Metrics
from apportion_schemas.catalogue import token, untoken
from apportion_schemas.decoding import from_outside

BYTES_MAX: Final = 4_096
LOCKS: Final = Path("/tmp/vgpulock")  # noqa: S108 - HAMi-core has this path written into it
_OPEN_TO_ALL: Final = 0o777
_TO_BE_READ: Final = 0o755

_log = logging.getLogger(__name__)
_decode = from_outside(msgspec.json.Decoder(Greet | Start | End).decode)
_encode = msgspec.json.Encoder().encode


class RunNode:
    """Serves `apportion run` on a machine without a kubelet, with the folders in `places`."""

    def __init__(
        self, agent: Agent, node: Node, places: Places, *, metrics: Metrics, clock: Clock
    ) -> None:
        """Check the folders. Raises ConfigError if one is not writable or `proc` is not /proc."""
        self._agent = agent
        self._node = node
        self._places = places
        try:
            places.state.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=places.state):
                pass  # check that it is writable
        except OSError as error:
            fix = f"{error.strerror}; choose a folder that the agent can write, or start it as root"
            raise ConfigError("--state", str(places.state), fix) from None
        if not (places.proc / "stat").is_file():
            fix = "the folder has no /proc file system; mount one there"
            raise ConfigError("--proc", str(places.proc), fix)
        self._runs = runs = Runs(places.state, places.proc)
        self._specifications = Specifications(places.cdi, (places.static_cdi,), places.proc)
        self.lifecycle = ShareLifecycle(
            agent,
            node,
            places,
            runs,
            metrics=metrics,
            clock=clock,
            adapt=lambda pod, made: on_host(made) if runs.on_host(pod) else made,
        )
        self._serving = False

    def not_ready(self) -> list[str]:
        """Return the reasons why no command can be started yet."""
        return [] if self._serving else ["not ready to start commands yet"]

    async def serve(self, ledger: Ledger) -> None:
        """Answer requests of `apportion run` until cancelled. Raises OSError, LedgerError."""
        await asyncio.to_thread(self.lifecycle.make_places)
        await asyncio.to_thread(self._open_places)
        await self._agent.reported(1)  # the ledger has been read to its end by that time
        await ledger.serve(subject_of(self._node.name), self._answer)
        self._serving = True
        async with asyncio.TaskGroup() as group:
            for loop in self.lifecycle.loops():
                group.create_task(loop())

    async def _answer(self, subject: str, payload: bytes) -> bytes:  # noqa: ARG002 - one subject
        if len(payload) > BYTES_MAX:
            return _encode(
                Started(error=f"the request has {len(payload)} bytes; the limit is {BYTES_MAX}")
            )
        try:
            return _encode(await self._carried_out(_decode(payload)))
        except (msgspec.DecodeError, NotPrepared, OSError) as error:
            return _encode(Started(error=str(error)))

    async def _carried_out(self, asked: Greet | Start | End) -> Started:
        if isinstance(asked, Greet):
            self._runs.see(Life(asked.pid, asked.started))
            return Started()
        if isinstance(asked, End):
            self._runs.end(asked.pod)
            self._specifications.remove(token(asked.pod))
            return Started()
        life = Life(asked.pid, asked.started)
        self._runs.begin(asked.pod, life, in_container=asked.in_container)
        try:
            edits = await self.lifecycle.preparing.prepare(
                Holder(asked.pod, "", "", (CONTAINER,), "", (asked.pod,))
            )
            return await asyncio.to_thread(self._handed, asked, edits)
        except BaseException:
            self._runs.end(asked.pod)
            raise

    def _handed(self, asked: Start, edits: Edits) -> Started:
        notes = list(filter(None, [unheld(edits, self._node.devices)]))
        if not asked.in_container:
            _make_locks()
            return Started(environment=dict(edits.env), notes=tuple(notes))
        folder = self._places.cdi
        try:
            self._specifications.write([token(asked.pod)], edits)
        except PermissionError as error:
            raise NotPrepared(
                f"cannot write the CDI specification of the share ({error}); start the agent as "
                f"root, or let it write to {folder} (its --cdi)"
            ) from None
        if edits.cards and self._specifications.vendors() is None:
            notes.append(
                f"{folder} has no CDI specification of {VENDORS}, so the container gets no NVIDIA "
                "device; run nvidia-ctk cdi generate --device-name-strategy=uuid"
            )
        return Started(device=device_name(token(asked.pod)), notes=tuple(notes))

    def _open_places(self) -> None:
        # Other users must reach their regions, whatever the agent's umask is.
        for folder in (self._places.state, self._places.state / "shares"):
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(_TO_BE_READ)


def _make_locks() -> None:
    """Create HAMi-core's lock folder for all users, without following links that users made."""
    try:
        LOCKS.mkdir(exist_ok=True)
        descriptor = os.open(LOCKS, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        _log.warning(
            "cannot create HAMi-core's lock folder, so its processes may conflict: %s", error
        )
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _OPEN_TO_ALL:
            os.fchmod(descriptor, _OPEN_TO_ALL)
    finally:
        os.close(descriptor)


_SAVED: Final = "runs.json"
_CLIMBED_MAX: Final = 64  # generations of processes between the one on a GPU and the command
_in_mounts = re.compile(rf"/shares/([^/\s]+)_{CONTAINER}/?\s").findall


class Run(Struct, frozen=True):
    """A running command, identified by its first process, which may end before the others."""

    life: Life
    in_container: bool
    # False if its environment is unreadable, so that its other processes are not seen
    open: bool = True


class Runs:
    """The commands that run on this machine; implements `Books`."""

    def __init__(self, folder: Path, proc: Path) -> None:
        self._proc = proc
        self._owners = Owners(proc)
        self._book = BootBook(folder / _SAVED, proc, Run)

    def see(self, life: Life) -> None:
        """Check that the process is visible on this machine. Raises NotPrepared if not."""
        if not lives(life, self._proc):
            raise NotPrepared(
                f"the agent does not see process {life.pid}; start the command outside of "
                "containers, and give an agent in a container the host's processes "
                "(`pid: host`)"
            )

    def begin(self, pod: str, life: Life, *, in_container: bool) -> None:
        """Record a command; `in_container` if a container runs it.

        Raises OSError, or NotPrepared if its process is not visible here."""
        self.see(life)
        # Only root can read the environments of other users' processes.
        own = os.geteuid()
        seen = own == 0 or (self._proc / str(life.pid)).stat().st_uid == own
        self._book.note(pod, Run(life, in_container, seen))

    def end(self, pod: str) -> None:
        """Remove the record of a command. Raises OSError."""
        self._book.strike(pod)

    def on_host(self, pod: str) -> bool:
        """Return True if the pod is a command that runs directly on the machine."""
        run = self._book.entries.get(pod)
        return run is not None and not run.in_container

    async def pods(self) -> set[str]:
        """Return the pods of running commands, and remove the commands that have ended."""
        runs = self._book.entries
        over = {
            pod
            for pod, run in runs.items()
            if run.open and not run.in_container and not lives(run.life, self._proc)
        }
        if over:
            # A run lasts as long as any of its processes, though the first may have ended.
            over -= await asyncio.to_thread(lambda: {pod for _, pod in marked(MARK, self._proc)})
        try:
            self._book.strike(*over)
        except OSError as error:
            raise NotPrepared(f"cannot remove ended commands from the list: {error}") from None
        return set(self._book.entries)

    def owner(self, pid: int) -> Owner | None:
        """Return a process's owner, if any. Ignores cgroups, which processes may share."""
        owner = self._owners.of(pid)
        if owner is None:
            return None
        by_life = {run.life: pod for pod, run in self._book.entries.items()}
        try:
            # The container engine, not the command, starts the container's processes, so the pod is
            # found by the folder that is mounted into the container.
            mounts = (self._proc / str(pid) / "mountinfo").read_text("utf-8", "replace")
        except OSError:
            mounts = ""
        mounted = map(untoken, _in_mounts(mounts))
        pod = next((each for each in mounted if each in self._book.entries), "")
        for _ in range(_CLIMBED_MAX):
            life = life_of(pid, self._proc)
            if pod or life is None:
                break
            pod = by_life.get(life, "")
            pid = parent_of(pid, self._proc)
        return owner._replace(pod=pod, container=CONTAINER if pod else "", cgroup="")
