"""Files that a container can write to, opened so that it cannot lead us elsewhere.

A container has its own folder, with its region in it, for writing; it may put there a link to a
file of the node, a pipe that nobody reads, or a shorter file. We run as root. Invariant: what is
opened here is a regular file of its own with one name, and no mapped memory of ours ends when its
owner cuts it off.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from apportion.core.grants.region import RegionInvalid

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SharedFile:
    """The bytes of one file (`region.Stored`), by the descriptor that it was opened with."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it is not there, or is a link.
            RegionInvalid: it is no regular file, or has another name somewhere.
        """
        self._descriptor = os.open(path, _FLAGS)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(self._descriptor)
            raise RegionInvalid(f"{path}: no regular file, or one with another name as well")

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
