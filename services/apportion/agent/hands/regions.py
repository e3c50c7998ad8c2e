"""Regions of containers on this node's disk: made before the container is, and kept while it runs.

One folder for each container, which it has for writing, and in it the region of HAMi-core, or what
its sister for NPUs puts there. A
container that is restarted finds its region as it was. Invariant: a region that a container may
have mapped is never replaced, only its numbers are.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

from apportion.agent.hands.files import SharedFile
from apportion.core.grants import RegionPlan
from apportion.core.grants.feedback import advise
from apportion.core.grants.region import Region, RegionInvalid, made
from apportion.runtime.files.atomic import write_whole
from apportion_schemas.catalogue import untoken

_OPEN_TO_ALL = 0o777
"""Mode of a container's folder: its processes run as whom they like (HAMi does the same)."""
_WRITABLE = 0o666

_log = logging.getLogger(__name__)


class Regions:
    """The regions below one folder of the node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._missing: set[str] = set()

    def ensure(self, plan: RegionPlan) -> None:
        """Have the region there with these limits: make it, or set those of the one that is there.

        Raises:
            OSError: the disk is full, or nobody may write there.
            RegionInvalid: more devices than a region has room for.
        """
        path = Path(plan.path)
        open_to_all(path.parent)
        try:
            with SharedFile(path) as file:
                region = Region(file)
                if _is_of(region, plan):
                    region.resize(plan.memory, plan.cores)
                    return
        except (FileNotFoundError, RegionInvalid):
            pass  # none yet, or one that nothing can be read from: HAMi-core cannot either
        except OSError as error:
            _log.warning("%s is replaced: %s", path, error)
        write_whole(path, made(plan), mode=_WRITABLE)

    def resize(self, plan: RegionPlan) -> bool:
        """Set other limits of a container that runs; whether it has a region of these devices."""
        try:
            with SharedFile(Path(plan.path)) as file:
                region = Region(file)
                if not _is_of(region, plan):
                    return False
                region.resize(plan.memory, plan.cores)
        except (OSError, RegionInvalid):
            return False
        return True

    def advise(self, now_s: float, recent_s: float) -> None:
        """One round of who waits for whom, over all containers; see `feedback`."""
        with ExitStack() as files:
            found = [region for _, path in self.each() for region in _region(path, files)]
            advise(found, now_s, recent_s)

    def read(self) -> Iterator[tuple[str, str, Region]]:
        """The pod, the container and the region of each, open until the next one is asked for."""
        for pod, path in self.each():
            with ExitStack() as files:
                for region in _region(path, files):
                    yield pod, _container(path), region

    def each(self) -> Iterator[tuple[str, Path]]:
        """The pod and the file of every region here."""
        for path in sorted(self._folder.glob("*/*.cache")):
            yield _pod(path.parent), path

    def keep(self, pods: Collection[str]) -> None:
        """Take away what other pods had, once they were missing twice in a row.

        `pods` are those that the kubelet knows of; it may have just begun with empty books.
        """
        folders = [(_pod(path), path) for path in self._folder.glob("*_*")]
        missing = {pod for pod, _ in folders if pod not in pods}
        for pod, path in folders:
            if pod in missing & self._missing:
                shutil.rmtree(path, ignore_errors=True)
        self._missing = missing


def open_to_all(folder: Path) -> None:
    """Have a folder there that everybody may write in. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(_OPEN_TO_ALL)


def _is_of(region: Region, plan: RegionPlan) -> bool:
    """Whether it was made for these devices.

    HAMi-core writes down all that NVML lists, which outside of a container, and in a privileged
    one, are those of the whole node; limits stand in CUDA's order all the same.
    """
    return set(plan.devices) <= set(region.devices)


def _region(path: Path, files: ExitStack) -> Iterator[Region]:
    """The region, unless its container broke it, which is then the only one to suffer."""
    try:
        yield Region(files.enter_context(SharedFile(path)))
    except (OSError, RegionInvalid):
        return


def _pod(folder: Path) -> str:
    return untoken(folder.name.rpartition("_")[0])


def _container(path: Path) -> str:
    return untoken(path.parent.name.rpartition("_")[2])
