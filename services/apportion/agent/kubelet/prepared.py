"""Which claims are prepared on this node, and whose they are.

The kubelet's checkpoint of devices does not know pods that have devices by claims alone, so what
they use is known from here. A claim stands in the book from before anything is made for it until
the kubelet has it taken back. Invariant: what is in the book is on the disk, and is of this boot of
the machine: of an earlier one no container runs any more.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from apportion.runtime.files.atomic import write_whole

_SAVED: Final = "claims.json"
_BOOT: Final = "sys/kernel/random/boot_id"

_log = logging.getLogger(__name__)


class _Book(Struct):
    """The file: the uid of each claim's pod by the claim's uid."""

    boot: str
    claims: dict[str, str] = {}


class Prepared:
    """The book of one node, in the folder that outlives a reboot."""

    def __init__(self, folder: Path, proc: Path) -> None:
        self._path = folder / _SAVED
        try:
            boot = (proc / _BOOT).read_text("ascii").strip()
        except OSError:  # then no boot is told from another
            boot = ""
        self._book = self._restored(boot)

    def pods(self) -> set[str]:
        """The uids of pods that have a prepared claim."""
        return set(self._book.claims.values())

    def note(self, claim: str, pod: str) -> None:
        """Put the claim into the book. Raises OSError."""
        if self._book.claims.get(claim) != pod:
            self._book.claims[claim] = pod
            self._save()

    def strike(self, claim: str) -> None:
        """Strike it out. Raises OSError."""
        if self._book.claims.pop(claim, None) is not None:
            self._save()

    def _save(self) -> None:
        write_whole(self._path, msgspec.json.encode(self._book))

    def _restored(self, boot: str) -> _Book:
        try:
            book = msgspec.json.decode(self._path.read_bytes(), type=_Book)
        except FileNotFoundError:
            return _Book(boot)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read, so no claim is known: %s", self._path, error)
            return _Book(boot)
        return book if book.boot == boot else _Book(boot)
