"""Writes files atomically, so that a crash or power failure leaves the old or the new content.

Readers notice that a file was rewritten by comparing its `stamp_of`."""

import os
import tempfile
from pathlib import Path


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return values that change when the file is rewritten; zeros if it cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a temporary file next to `path`, sync it, and rename it to `path`.

    If this raises OSError, an existing file is unchanged."""
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    # The rename is durable only once the folder is synced.
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
