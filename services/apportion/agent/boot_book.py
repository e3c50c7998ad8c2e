"""What an agent has noted of its node and must know again after it was killed: a file of entries.

Invariant: what is in the book is on the disk, and is of this boot of the machine: of an earlier one
no container and no command runs any more.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from apportion.runtime.files.atomic import write_whole

_BOOT: Final = "sys/kernel/random/boot_id"

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _File(Struct, Generic[T]):
    """What stands on the disk."""

    boot: str
    entries: dict[str, T] = {}


class BootBook(Generic[T]):
    """Entries by name; they are lost with the boot that they are of."""

    def __init__(self, path: Path, proc: Path, kind: type[T]) -> None:
        """`proc` is where the kernel tells of its boot; without it no boot is told from another."""
        self._path = path
        self._kind: Any = _File[kind]  # type: ignore[valid-type]
        try:
            boot = (proc / _BOOT).read_text("ascii").strip()
        except OSError:
            boot = ""
        self._file: _File[T] = self._restored(boot)

    @property
    def entries(self) -> dict[str, T]:
        """What is noted now, by name: to be read only."""
        return self._file.entries

    def note(self, name: str, entry: T) -> None:
        """Put it into the book. Raises OSError."""
        if self._file.entries.get(name) != entry:
            self._file.entries[name] = entry
            self._save()

    def strike(self, *names: str) -> None:
        """Strike them out, where they stand there. Raises OSError."""
        found = [name for name in names if self._file.entries.pop(name, None) is not None]
        if found:
            self._save()

    def _save(self) -> None:
        write_whole(self._path, msgspec.json.encode(self._file))

    def _restored(self, boot: str) -> _File[T]:
        file: _File[T]
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return _File(boot)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read, so nothing in it is known: %s", self._path, error)
            return _File(boot)
        return file if file.boot == boot else _File(boot)
