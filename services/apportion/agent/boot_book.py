"""A file in which an agent keeps entries across its own restarts.

Invariant: an entry is on disk before it is visible; a failed write changes nothing. A reboot ends
all containers and commands, so entries of an earlier boot are dropped. A book with `outlives_boot`
keeps them, because a kubelet starts the same pod's containers again after a reboot."""

import logging
import threading
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from apportion.runtime.files.atomic import write_whole

_BOOT: Final = "sys/kernel/random/boot_id"

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _File(Struct, Generic[T]):
    boot: str
    entries: dict[str, T] = {}


class BootBook(Generic[T]):
    """Named entries in a file, kept across restarts. A reboot drops them unless `outlives_boot`."""

    def __init__(
        self, path: Path, proc: Path, kind: type[T], *, outlives_boot: bool = False
    ) -> None:
        """Read the file. `proc` is the kernel's /proc; without it, reboots are not detected."""
        self._path = path
        try:
            boot = (proc / _BOOT).read_text("ascii").strip()
        except OSError:
            boot = ""
        self._file: _File[T] = _File(boot)
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File[kind])  # type: ignore[valid-type]
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("cannot read %s, so the file is ignored: %s", path, error)
        else:
            if outlives_boot or file.boot == boot:
                self._file = file
        self._writing = threading.Lock()

    @property
    def entries(self) -> dict[str, T]:
        """Return the entries by name, read-only. A later write does not change this dict."""
        return self._file.entries

    def note(self, name: str, entry: T) -> None:
        """Write an entry. Raises OSError and leaves the book unchanged if the write fails."""
        with self._writing:
            if self._file.entries.get(name) != entry:
                self._save(self._file.entries | {name: entry})

    def strike(self, *names: str) -> None:
        """Delete the named entries that exist. Raises OSError, leaving the book unchanged."""
        with self._writing:
            left = {name: each for name, each in self._file.entries.items() if name not in names}
            if len(left) < len(self._file.entries):
                self._save(left)

    def _save(self, entries: dict[str, T]) -> None:
        # The disk first: if the write fails, a retry must see that nothing was written.
        file = _File(self._file.boot, entries)
        write_whole(self._path, msgspec.json.encode(file))
        self._file = file
