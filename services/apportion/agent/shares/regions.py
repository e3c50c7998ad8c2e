"""Manages the region files in which HAMi-core keeps a container's limits and use on this node.

Each region exists before its container starts. Invariants: a region that a container may have
mapped is only changed in place, unless the container itself removed it. Nothing that a container
puts into its folder can fail a cleanup round or make the round exceed its limits."""

import logging
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Self
from uuid import uuid4

from apportion.core.grants import RegionPlan
from apportion.core.grants.feedback import Contender, advise
from apportion.core.grants.hami_core import REGION
from apportion.core.grants.region import Region, RegionInvalid, made
from apportion.runtime.files.atomic import write_whole
from apportion_schemas.allocation import BreachCode
from apportion_schemas.catalogue import untoken

_OPEN_TO_ALL = 0o777  # mode of a container's folder, as in HAMi: its processes run as any user
_WRITABLE = 0o666
REMOVED_MAX: Final = 10_000  # files and folders removed per round; the next round continues

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """A container whose region must exist: its pod's namespace, and the region's content."""

    namespace: str
    plan: RegionPlan


class Breach(NamedTuple):
    """A container that exceeded its share of a device, with the limit or the use that was found."""

    pod: str
    container: str
    device: str
    code: BreachCode
    memory: int = 0  # bytes
    cores: int = 0  # percent


class Regions:
    """Manages the HAMi-core region files of one node, each in a subfolder of `folder`."""

    def __init__(self, folder: Path, first: Collection[str] = ()) -> None:
        """Manage this folder. Containers of namespaces `first` have precedence; see `advise`."""
        self._folder = folder
        self._first = first
        self._missing: set[str] = set()
        self._written: dict[str, RegionPlan] = {}
        self._lock = threading.Lock()

    def ensure(self, plan: RegionPlan, *, starting: bool = False) -> None:
        """Create the region that `plan` describes, or set its limits in an existing region.

        `starting`: the container has no process yet. Raises OSError, RegionInvalid."""
        path = Path(plan.path)
        with self._lock:
            open_to_all(path.parent)
            try:
                with SharedFile(path) as file:
                    region = Region(file)
                    if set(plan.devices) <= set(region.devices):
                        if starting:
                            region.forget_processes()
                        region.hold(plan)
                        self._written[plan.path] = plan
                        return
            except (FileNotFoundError, RegionInvalid):
                pass  # none yet, or one that HAMi-core cannot read either
            except OSError as error:
                _log.warning("replacing %s: %s", path, error)
            self._make(plan)

    def resize(self, plan: RegionPlan) -> bool:
        """Set a running container's new limits. Return False if its region lacks a device."""
        with self._lock:
            try:
                with SharedFile(Path(plan.path)) as file:
                    region = Region(file)
                    if not set(plan.devices) <= set(region.devices):
                        return False
                    region.hold(plan)
                    self._written[plan.path] = plan
            except (OSError, RegionInvalid):
                return False
        return True

    def round(self, kept: Iterable[Kept], now_s: float, recent_s: float) -> list[Breach]:
        """Restore the ledger's limits in every region, then call `advise` to block containers.

        Return a breach for each limit that a container raised or removed since the last round.
        `now_s` is in seconds since 1970. A container's use of a device counts as recent for
        `recent_s` seconds."""
        breaches: list[Breach] = []
        with self._lock, ExitStack() as files:
            contenders = []
            for namespace, plan in kept:
                if not Path(plan.path).parent.is_dir():
                    continue  # not prepared yet
                try:
                    region, differed, found = self._restored(plan, files)
                except (OSError, RegionInvalid) as error:
                    _log.warning("cannot restore %s: %s", plan.path, error)
                    continue
                if differed and self._written.get(plan.path) == plan:
                    _log.warning("restored %s, which its container had changed", plan.path)
                    breaches += found
                self._written[plan.path] = plan
                contenders.append(Contender(region, namespace, plan.devices, plan.priority))
            advise(contenders, now_s, recent_s, self._first)
        return breaches

    def _restored(self, plan: RegionPlan, files: ExitStack) -> tuple[Region, bool, list[Breach]]:
        path = Path(plan.path)
        whose = _pod(path.parent), _container(path)
        try:
            region = Region(files.enter_context(SharedFile(path)))
            raised = [
                Breach(*whose, plan.devices[position], "raised", memory, cores)
                for position, memory, cores in region.raised(plan)
            ]
            return region, region.hold(plan), raised
        except (FileNotFoundError, RegionInvalid):
            self._make(plan)
        removed = [Breach(*whose, device, "removed") for device in plan.devices]
        return Region(files.enter_context(SharedFile(path))), True, removed

    def _make(self, plan: RegionPlan) -> None:
        path = Path(plan.path)
        if path.is_dir() and not path.is_symlink():
            remove(path, REMOVED_MAX)
        write_whole(path, made(plan), mode=_WRITABLE)
        self._written[plan.path] = plan

    def read(
        self, only: Collection[tuple[str, str]] | None = None
    ) -> Iterator[tuple[str, str, Region]]:
        """Yield each container's pod, name and region; with `only`, just these containers."""
        for pod, path in self.each():
            if only is not None and (pod, _container(path)) not in only:
                continue
            with ExitStack() as files:
                try:
                    region = Region(files.enter_context(SharedFile(path)))
                except (OSError, RegionInvalid):
                    continue  # its container damaged it, which affects that container alone
                yield pod, _container(path), region

    def each(self) -> Iterator[tuple[str, Path]]:
        """Yield each region's pod uid and file."""
        for folder in sorted(self._folder.glob("*_*")):
            yield _pod(folder), folder / REGION

    def keep(self, pods: Collection[str]) -> None:
        """Remove the folders of pods that were missing from `pods` in two calls in a row."""
        # Twice, because a kubelet that just started may not know all of its pods.
        folders = [(_pod(path), path) for path in self._folder.glob("*_*")]
        missing = {pod for pod, _ in folders if pod not in pods}
        left = REMOVED_MAX
        for pod, path in folders:
            if pod in missing & self._missing and left > 0:
                self._written.pop(str(path / REGION), None)
                try:
                    left -= remove(path, left)
                except OSError as error:
                    _log.warning("cannot remove %s: %s", path, error)
        self._missing = missing


def open_to_all(folder: Path) -> None:
    """Create a folder that all users may write to. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(_OPEN_TO_ALL)


def _pod(folder: Path) -> str:
    return untoken(folder.name.rpartition("_")[0])


def _container(path: Path) -> str:
    return untoken(path.parent.name.rpartition("_")[2])


_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedFile:
    """An open region file (`region.Stored`) that a container may change while root reads it.

    Invariant: the file is regular, has one hard link, and is not mapped into memory here. So a
    container that truncates the file does no harm."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError if missing, RegionInvalid if it is not a plain file."""
        # Opening a device can have side effects; O_PATH only looks at it.
        looked = os.open(path, _LOOK)
        try:
            status = os.fstat(looked)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise RegionInvalid(f"{path}: not a regular file, or it has several hard links")
            self._descriptor = os.open(f"/proc/self/fd/{looked}", _FLAGS)
        finally:
            os.close(looked)

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, count: int) -> bytes:
        """Read `count` bytes at offset `at`; implements `region.Stored`."""
        return os.pread(self._descriptor, count, at)

    def write(self, at: int, data: bytes) -> None:
        """Write `data` at offset `at`; implements `region.Stored`."""
        os.pwrite(self._descriptor, data, at)

    def close(self) -> None:
        """Close the file descriptor; the file remains."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove(folder: Path, most: int) -> int:
    """Remove at most `most` entries of a folder, then the empty folder; return the number removed.

    Subfolders are moved to the top first, so neither recursion nor many open files are needed."""
    done = 0
    top = os.open(folder, _FOLDER)
    try:
        while done < most and (names := _names(top, most - done)):
            for name, is_folder in names:
                done += 1
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                    continue
                done += _emptied(top, name, most - done)
                if done < most:
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    if done < most:
        folder.rmdir()
    return done + 1


def _emptied(top: int, name: str, most: int) -> int:
    done = 0
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        while done < most and (names := _names(inner, most - done)):
            for each, is_folder in names:
                done += 1
                if is_folder:
                    os.rename(each, uuid4().hex, src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(each, dir_fd=inner)
    finally:
        os.close(inner)
    return done


def _names(folder: int, most: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(each.name, each.is_dir(follow_symlinks=False)) for each in islice(entries, most)]
