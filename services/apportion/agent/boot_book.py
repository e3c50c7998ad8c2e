"""What an agent has noted of its node and must know again after it was killed: a file of entries.

Invariant: what is in the book is on the disk, whoever writes at once and whatever write fails, and
is of this boot of the machine: of an earlier one no container and no command runs any more. What
proves something of a pod, and not that it runs, is kept: a kubelet starts the containers of the
same pod again after a reboot."""

import logging
import threading
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

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
    """Entries by name; they are lost with the boot that they are of, unless they outlive it."""

    def __init__(
        self, path: Path, proc: Path, kind: type[T], *, outlives_boot: bool = False
    ) -> None:
        """`proc` is where the kernel tells of its boot; without it no boot is told from another."""
        self._path = path
        self._outlives_boot = outlives_boot
        self._kind: Any = _File[kind]  # type: ignore[valid-type]
        try:
            boot = (proc / _BOOT).read_text("ascii").strip()
        except OSError:
            boot = ""
        self._file: _File[T] = self._restored(boot)
        self._writing = threading.Lock()

    @property
    def entries(self) -> dict[str, T]:
        """What is noted now, by name: to be read only; it stays as it is when more is noted."""
        return self._file.entries

    def note(self, name: str, entry: T) -> None:
        """Put it into the book. Raises OSError, and then the book is as it was."""
        with self._writing:
            if self._file.entries.get(name) != entry:
                self._save(self._file.entries | {name: entry})

    def strike(self, *names: str) -> None:
        """Strike them out, where they stand there. Raises OSError, and then all still do."""
        with self._writing:
            left = {name: each for name, each in self._file.entries.items() if name not in names}
            if len(left) < len(self._file.entries):
                self._save(left)

    def _save(self, entries: dict[str, T]) -> None:
        """On the disk first: whoever tries again after a failure is to find that it is undone."""
        file = _File(self._file.boot, entries)
        write_whole(self._path, msgspec.json.encode(file))
        self._file = file

    def _restored(self, boot: str) -> _File[T]:
        file: _File[T]
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return _File(boot)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read, so nothing in it is known: %s", self._path, error)
            return _File(boot)
        return file if self._outlives_boot or file.boot == boot else _File(boot)
