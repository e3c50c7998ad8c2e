"""Files that a container can write to, opened so that it cannot lead us elsewhere.

A container has its own folder, with its region in it, for writing; it may put there a link to a
file of the node, a pipe that nobody reads, or a shorter file. We run as root. Invariant: what is
opened here is a regular file of its own with one name, and no mapped memory of ours ends when its
owner cuts it off.
"""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from apportion.core.grants.region import RegionInvalid

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedFile:
    """The bytes of one file (`region.Stored`), by the descriptor that it was opened with."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it is not there.
            RegionInvalid: it is no regular file, or has another name somewhere.
        """
        # To open a device does something to it; to look at it by O_PATH does not.
        looked = os.open(path, _LOOK)
        try:
            status = os.fstat(looked)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise RegionInvalid(f"{path}: no regular file, or one with another name as well")
            self._descriptor = os.open(f"/proc/self/fd/{looked}", _FLAGS)
        finally:
            os.close(looked)

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, count: int) -> bytes:
        """See `region.Stored`."""
        return os.pread(self._descriptor, count, at)

    def write(self, at: int, data: bytes) -> None:
        """See `region.Stored`."""
        os.pwrite(self._descriptor, data, at)

    def close(self) -> None:
        """Let the descriptor go; the file stays."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def remove(folder: Path, most: int) -> int:
    """Remove a folder and all that is in it, up to so many things; return how many were removed.

    However deep the folders in it are, they are emptied at the top, so this neither recurses nor
    holds more than two of them open; and it follows no link.

    Raises:
        OSError: something in it cannot be removed.
    """
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
    """Unlink the files of one folder, and move its folders up into `top`; return how many."""
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
    """Some of what is in it, and whether each is a folder."""
    with os.scandir(folder) as entries:
        return [(each.name, each.is_dir(follow_symlinks=False)) for each in islice(entries, most)]
