"""The objects of one kind as a watch tells of them, and who is to know when one changes.

Invariant: after a list what is here is what the list had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from apportion.runtime.kube.watch import number, skipping

V = TypeVar("V")


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What every object has: its name, its namespace if it is in one, and its revision."""

    name: str
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """What it is called: `namespace/name`, or its name where it has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def version(self) -> int:
        """The API server's revision of it."""
        return number(self.resource_version)


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


_decode = skipping(msgspec.json.Decoder(_Object).decode)


def metadata_of(raw: bytes) -> Metadata:
    """The part of any object that can be read whatever the rest is."""
    return _decode(raw).metadata


class Marks:
    """What is to be compared again, in order of marking; `stir` is called when any is marked."""

    def __init__(self, stir: Callable[[], None]) -> None:
        self._stir = stir
        self._marked: dict[str, None] = {}

    def mark(self, key: str) -> None:
        """It is to be compared again."""
        self._marked[key] = None
        self._stir()

    def take(self) -> dict[str, None]:
        """All that is marked; it is no longer."""
        marked, self._marked = self._marked, {}
        return marked


class Kind(Generic[V]):
    """One kind's objects by key, kept up by a `Watch`; see `runtime.kube.watch.Audience`."""

    def __init__(
        self,
        entries: dict[str, V],
        read: Callable[[bytes], tuple[str, V | None, int]],
        changed: Callable[[str, V | None, V | None, int], None],
        *,
        expected: Callable[[], Iterable[str]],
        forgotten: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._entries = entries
        self._read = read
        self._changed = changed
        self._expected = expected
        self._forgotten = forgotten
        self._missing: set[str] = set()
        self.version = 0

    def listing(self) -> None:
        """See `Audience`."""
        self._missing = {*self._entries, *self._expected()}

    def seen(self, raw: bytes) -> None:
        """See `Audience`."""
        key, entry, version = self._read(raw)
        self._missing.discard(key)
        before = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        self._changed(key, before, entry, version)

    def gone(self, raw: bytes) -> None:
        """See `Audience`."""
        key, _, version = self._read(raw)
        self._remove(key, version)

    def listed(self, version: int) -> None:
        """See `Audience`."""
        for key in sorted(self._missing):
            self._remove(key, version)
        self._missing.clear()
        self.reached(version)

    def reached(self, version: int) -> None:
        """See `Audience`."""
        self.version = version

    def _remove(self, key: str, version: int) -> None:
        self._forgotten(key)
        self._changed(key, self._entries.pop(key, None), None, version)
