"""A small disk for each server, so that the server's disk can be full while the machine's is not.

If the machine can mount loop devices, the disk is a file with ext4. Otherwise it is a tmpfs. If
nothing can be mounted, it is a plain folder, which cannot be filled.

Invariant: every mounted disk is unmounted in the end, even if a suspended server still uses it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

SIZE_MIB = 192
_BALLAST = "ballast"
_CHUNK = b"\0" * (1 << 20)


class Disk:
    """The folder for one server's store, if possible on a filesystem of limited size."""

    def __init__(self, folder: Path, *, size_mib: int = SIZE_MIB) -> None:
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self._size_mib = size_mib
        self.kind = "folder"

    def mount(self) -> None:
        self.path.mkdir(parents=True)
        if self._mount_loop():
            self.kind = "loop"
        elif _done("mount", "-t", "tmpfs", "-o", f"size={self._size_mib}m", "none", self.path):
            self.kind = "tmpfs"

    def _mount_loop(self) -> bool:
        if shutil.which("mkfs.ext4") is None:
            return False
        with self._image.open("wb") as image:
            image.truncate(self._size_mib << 20)
        made = _done("mkfs.ext4", "-q", "-F", "-m", "0", self._image)
        if made and _done("mount", "-o", "loop", self._image, self.path):
            return True
        self._image.unlink()
        return False

    @property
    def can_fill(self) -> bool:
        """Return True if the disk can be filled without filling the machine's own disk."""
        return self.kind != "folder"

    def fill(self) -> None:
        """Use up all free space of the disk, to the last byte."""
        if not self.can_fill:
            raise RuntimeError(f"{self.path} is no disk of its own")
        with (self.path / _BALLAST).open("ab", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(_CHUNK)
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(_CHUNK[:512])
            with contextlib.suppress(OSError):
                os.fsync(ballast.fileno())

    def free(self) -> None:
        """Release the space that `fill` has used up."""
        (self.path / _BALLAST).unlink(missing_ok=True)

    def unmount(self) -> None:
        if self.kind != "folder":
            _done("umount", "-l", self.path)
        self._image.unlink(missing_ok=True)


def _done(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
