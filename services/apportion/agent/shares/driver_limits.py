"""The driver's own limits of memory, set on the cgroups of containers that HAMi-core holds as well.

HAMi-core is a library in the container's processes; a limit of the driver is none that a process
could get around. It is set once a container uses a card, and anew when its share has another size.
What is held is no record of ours: the driver is asked, and forgets it with the cgroup. Invariant:
only the cgroup of one container of a share is ever limited, none that others are in as well.
"""

from __future__ import annotations

import asyncio
import glob
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from apportion.agent.backend import DeviceBackend, NotMade
from apportion.agent.reporting.view import Claim
from apportion_schemas import Device
from apportion_schemas.inventory import Mode

_MODE: Final[Mode] = "hami-core"
_MIB: Final = 1 << 20
_UP: Final = "/../"
_DEPTH_MAX: Final = 3
"""Of folders above a pod's own: the kubelet's two, and one that it was given for them."""
_LOGGED_MAX: Final = 1_000
_VERSION_2: Final = "cgroup.controllers"
"""A file of every cgroup of version 2, and of none of version 1; see cgroups(7)."""

_log = logging.getLogger(__name__)


class Limit(NamedTuple):
    """Bytes of a device for the processes of a cgroup, whose path is as the kernel says it."""

    device: str
    cgroup: str
    memory: int


def limits_of(
    claims: Iterable[Claim],
    cgroups: Mapping[tuple[str, str], str],
    devices: Mapping[str, Device],
) -> Iterator[Limit]:
    """Those of containers that HAMi-core holds; `cgroups` are by pod and container."""
    for claim in claims:
        for share in (*claim.placed.shares, *claim.placed.borrowed):
            cgroup = cgroups.get((claim.pod, share.container))
            device = devices.get(share.device)
            if cgroup and device is not None and device.mode == _MODE:
                yield Limit(share.device, cgroup, share.memory_mib * _MIB)


class DriverLimits:
    """The limits of one node, whose cgroups (version 2) are at one folder."""

    def __init__(self, backend: DeviceBackend, cgroups: Path) -> None:
        self._backend = backend
        self._cgroups = cgroups
        self._found: dict[str, Path] = {}
        self._logged: set[str] = set()

    async def hold(self, limits: Iterable[Limit]) -> None:
        """Have the driver hold them where it can; what it cannot is said once."""
        if not (self._cgroups / _VERSION_2).exists():
            self._log_once(f"there are no cgroups of version 2 at {self._cgroups}, see --cgroups")
        wanted = list(limits)
        cgroups = {limit.cgroup for limit in wanted}
        self._found = await asyncio.to_thread(self._folders, cgroups)
        without: set[str] = set()
        for limit in wanted:
            if limit.device in without:
                continue
            folder = self._found[limit.cgroup]
            try:
                if not await self._backend.hold_memory(limit.device, folder, limit.memory):
                    without.add(limit.device)
                    problem = f"the driver of {limit.device} has no limits of memory for cgroups"
                    self._log_once(problem)
            except NotMade as refused:
                self._log_once(
                    f"{folder}: {refused}"
                    if folder.is_dir()
                    else f"the node's cgroups are not at {self._cgroups}, which is --cgroups"
                )

    def _log_once(self, problem: str) -> None:
        if problem in self._logged:
            return
        if len(self._logged) >= _LOGGED_MAX:
            self._logged.clear()
        self._logged.add(problem)
        _log.info("a container is held by HAMi-core alone: %s", problem)

    def _folders(self, cgroups: Iterable[str]) -> dict[str, Path]:
        return {each: self._found.get(each) or self._folder(each) for each in cgroups}

    def _folder(self, cgroup: str) -> Path:
        """That of the cgroup, which need not be there.

        To a process with a cgroup namespace of its own, as an agent in a pod has, the kernel says
        the way up from its own cgroup and only the end of the path. That has the container's id in
        it, and is found below the kubelet's folders.
        """
        _, up, end = cgroup.rpartition(_UP)
        end = end.lstrip("/")
        if up:
            for depth in range(_DEPTH_MAX + 1):
                for found in self._cgroups.glob("*/" * depth + glob.escape(end)):
                    return found
        return self._cgroups / end
