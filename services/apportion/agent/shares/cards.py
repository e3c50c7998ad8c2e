"""Prepare a device for containers: its MPS daemon, its MIG instances, and the driver's limits.

Invariants: a device with an MPS daemon accepts only the daemon as a process. The agent destroys an
instance only if it made the instance, and no container in the ledger may use it. A limit is only
set on the cgroup of a single container. A restarted agent reads the daemons, the driver, its files
and the ledger, and reaches the same result."""

import asyncio
import glob
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from apportion.agent.backend import DeviceBackend, InTheWay, NotMade
from apportion.agent.reporting.view import Claim
from apportion.core.grants import MadeInstance
from apportion.core.grants.mig import cut, named
from apportion_schemas import Device, MigInstance, Share
from apportion_schemas.inventory import Mode

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWERS_WITHIN_S: Final = 10.0
_ASK: Final = "get_default_active_thread_percentage"
# In its own mount namespace: clients in containers do not see the node's `/dev/shm`.
_PRIVATE_SHM: Final = 'mount --bind "$0" /dev/shm && exec "$@"'
_ANSWER_BYTES_MAX: Final = 300
# how long a start waits for a conflicting instance, which an ended container frees soon
PATIENCE_S: Final = 8.0
_AGAIN_S: Final = 0.25
_MODE: Final[Mode] = "hami-core"
_MIB: Final = 1 << 20
_UP: Final = "/../"
# folders above a pod's own: the kubelet's two, and its configured cgroup root
_DEPTH_MAX: Final = 3
_LOGGED_MAX: Final = 1_000
# A file in every cgroup of version 2 and in none of version 1; see cgroups(7).
_VERSION_2: Final = "cgroup.controllers"

_log = logging.getLogger(__name__)


class Daemons:
    """Starts and stops the MPS daemons of one node; each device has a subfolder of `folder`."""

    def __init__(self, folder: Path, backend: DeviceBackend, launcher: Sequence[str] = ()) -> None:
        """Start daemons with the command prefix `launcher`, such as `systemd-run --scope`."""
        self._folder = folder
        self._backend = backend
        self._launcher = tuple(launcher)
        self._alone = asyncio.Lock()

    async def ensure(self, card: str, memory_mib: int) -> None:
        """Start the MPS daemon if needed, and limit its clients' memory. Raises NotMade."""
        async with self._alone:
            if not await self._lives(card):
                home = self._folder / card
                for name in ("pipe", "log", "shm"):
                    (home / name).mkdir(parents=True, exist_ok=True)
                shm = home / "shm"
                shm.chmod(0o1777)  # like /dev/shm: clients run as any user
                await self._backend.set_exclusive(card, exclusive=True)
                private = ("unshare", "--mount", "sh", "-c", _PRIVATE_SHM, str(shm), CONTROL, "-d")
                status, said = await self._run(card, [*self._launcher, *private])
                if status:
                    raise NotMade(f"the MPS daemon of {card} does not start: {said}")
                _log.info("%s: MPS daemon started", card)
            # For clients that emptied their environment, in which each has its own limit.
            _, servers = await self._asked(card, "get_server_list")
            lines = [f"set_default_device_pinned_mem_limit 0 {memory_mib}M"]
            lines += [
                f"set_device_pinned_mem_limit {server} 0 {memory_mib}M"
                for server in servers.split()
                if server.isdecimal()
            ]
            status, said = await self._asked(card, *lines)
            if status:
                raise NotMade(f"the MPS daemon of {card} rejects the memory limit: {said}")

    async def keep(self, needed: Mapping[str, int]) -> dict[str, bool]:
        """Stop unneeded daemons and restart dead ones.

        Return the devices whose daemon had died, each with True if the restart worked. `needed`
        maps each device that needs a daemon to the MiB of its largest share."""
        died: dict[str, bool] = {}
        for card in sorted(path.name for path in self._folder.glob("*")):
            try:
                if card not in needed:
                    async with self._alone:
                        if await self._lives(card):
                            await self._asked(card, "quit")
                            _log.info("%s: unused MPS daemon stopped", card)
                        with suppress(NotMade):  # the device may be gone
                            await self._backend.set_exclusive(card, exclusive=False)
                        await asyncio.to_thread(
                            shutil.rmtree, self._folder / card, ignore_errors=True
                        )
                elif not await self._lives(card):
                    _log.error("%s: MPS daemon died, with its clients", card)
                    await self.ensure(card, needed[card])
                    died[card] = True
            except NotMade as problem:  # it hangs, or its program is being replaced
                _log.error("%s", problem)
                if card in needed:
                    died[card] = False
        return died

    async def _lives(self, card: str) -> bool:
        if not (self._folder / card / "pipe").is_dir():
            return False
        status, _ = await self._asked(card, _ASK)
        return status == 0

    async def _asked(self, card: str, *lines: str) -> tuple[int, str]:
        return await self._run(card, [CONTROL], "".join(f"{line}\n" for line in lines))

    async def _run(self, card: str, words: Sequence[str], said: str = "") -> tuple[int, str]:
        home = self._folder / card
        environ = os.environ | {
            "CUDA_VISIBLE_DEVICES": card,
            "CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
        }
        try:
            return await asyncio.to_thread(_ran, words, environ, said)
        except OSError as error:
            raise NotMade(f"cannot start {words[0]}: {error}") from None
        except subprocess.TimeoutExpired:
            raise NotMade(f"{' '.join(words)} timed out after {ANSWERS_WITHIN_S:g} s") from None


def _ran(words: Sequence[str], environ: dict[str, str], said: str) -> tuple[int, str]:
    # Not a pipe: a daemon may keep it open for ever.
    with tempfile.TemporaryFile() as answer:
        done = subprocess.run(
            words,
            env=environ,
            input=said.encode(),
            stdout=answer,
            stderr=subprocess.STDOUT,
            timeout=ANSWERS_WITHIN_S,
            start_new_session=True,
            check=False,
        )
        answer.seek(0)
        return done.returncode, answer.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip()


class Instances:
    """Creates and destroys the MIG instances of one node's devices."""

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        self._left: dict[str, tuple[tuple[MigInstance, ...], tuple[MigInstance, ...]]] = {}
        self._problems: dict[str, str] = {}

    async def ensure(
        self, wanted: Iterable[Share], needed: Collection[Share]
    ) -> dict[Share, MadeInstance]:
        """Make the MIG instances of one container's shares. Raises NotMade, OSError."""
        made: dict[Share, MadeInstance] = {}
        loop = asyncio.get_running_loop()
        for share in wanted:
            if share.instance is None:
                continue
            others = _of_card(needed, share.device)
            until = loop.time() + PATIENCE_S
            while share not in made:
                try:
                    made[share] = await self._backend.make_instance(
                        share.device, cut(share.instance), others, least_mib=share.memory_mib
                    )
                except InTheWay:
                    if loop.time() > until:
                        raise
                    await asyncio.sleep(_AGAIN_S)
        return made

    async def keep(self, cards: Iterable[str], needed: Collection[Share]) -> None:
        """Destroy this agent's instances on `cards` that nothing needs or uses. Raises OSError."""
        for card in cards:
            try:
                kept = await self._backend.keep_instances(card, _of_card(needed, card))
            except NotMade as problem:
                if self._problems.get(card) != str(problem):
                    _log.warning("%s: MIG instances left unchanged: %s", card, problem)
                self._problems[card] = str(problem)
                continue
            self._problems.pop(card, None)
            if kept.gone:
                _log.info("%s: destroyed unused MIG instances %s", card, _names(kept.gone))
            if (kept.held, kept.foreign) != self._left.get(card, ((), ())):
                # Log each remaining instance once, until it changes.
                self._left[card] = kept.held, kept.foreign
                if kept.held:
                    _log.warning(
                        "%s: no pod needs MIG instances %s, but a process or DCGM uses them; "
                        "retrying until they are destroyed",
                        card,
                        _names(kept.held),
                    )
                if kept.foreign:
                    _log.warning(
                        "%s: MIG instances %s were not created by Apportion, so no pod gets their "
                        "slices; if they are unused, destroy them with nvidia-smi mig -dci and "
                        "-dgi",
                        card,
                        _names(kept.foreign),
                    )


def _of_card(shares: Iterable[Share], card: str) -> set[MigInstance]:
    return {cut(each.instance) for each in shares if each.device == card and each.instance}


def _names(instances: Iterable[MigInstance]) -> str:
    return ", ".join(named(each) for each in instances)


class Limit(NamedTuple):
    """A cgroup's memory limit on a device."""

    device: str
    cgroup: str  # the path that the kernel reports
    memory: int  # in bytes


def limits_of(
    claims: Iterable[Claim], cgroups: Mapping[tuple[str, str], str], devices: Mapping[str, Device]
) -> Iterator[Limit]:
    """Yield the limits of containers in HAMi-core mode; `cgroups` is keyed by pod and container."""
    for claim in claims:
        for share in (*claim.placed.shares, *claim.placed.borrowed):
            cgroup = cgroups.get((claim.pod, share.container))
            device = devices.get(share.device)
            if cgroup and device is not None and device.mode == _MODE:
                yield Limit(share.device, cgroup, share.memory_mib * _MIB)


class DriverLimits:
    """Sets the driver's memory limits for the containers below the cgroup v2 folder `cgroups`."""

    def __init__(self, backend: DeviceBackend, cgroups: Path) -> None:
        self._backend = backend
        self._cgroups = cgroups
        self._found: dict[str, Path] = {}
        self._logged: set[str] = set()

    async def hold(self, limits: Iterable[Limit]) -> None:
        """Set the limits where the driver supports them, and log once where it does not."""
        if not (self._cgroups / _VERSION_2).exists():
            self._log_once(f"no cgroups version 2 at {self._cgroups}; see --cgroups")
        wanted = list(limits)
        cgroups = {limit.cgroup for limit in wanted}
        self._found = await asyncio.to_thread(
            lambda: {each: self._found.get(each) or self._folder(each) for each in cgroups}
        )
        without: set[str] = set()
        for limit in wanted:
            if limit.device in without:
                continue
            folder = self._found[limit.cgroup]
            try:
                if not await self._backend.hold_memory(limit.device, folder, limit.memory):
                    without.add(limit.device)
                    self._log_once(
                        f"the driver of {limit.device} does not support memory limits for cgroups"
                    )
            except NotMade as refused:
                self._log_once(
                    f"{folder}: {refused}"
                    if folder.is_dir()
                    else f"the node's cgroups are not at {self._cgroups}; see --cgroups"
                )

    def _log_once(self, problem: str) -> None:
        if problem in self._logged:
            return
        if len(self._logged) >= _LOGGED_MAX:
            self._logged.clear()
        self._logged.add(problem)
        _log.info("memory is limited by HAMi-core only: %s", problem)

    def _folder(self, cgroup: str) -> Path:
        # To a process in its own cgroup namespace, such as an agent in a pod, the kernel gives a
        # path up from its own cgroup. The end of it has the container's id.
        _, up, end = cgroup.rpartition(_UP)
        end = end.lstrip("/")
        if up:
            for depth in range(_DEPTH_MAX + 1):
                for found in self._cgroups.glob("*/" * depth + glob.escape(end)):
                    return found
        return self._cgroups / end
