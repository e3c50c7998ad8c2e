"""Who reads the ledger now, and which formats each of them knows: its consumers tell.

A reader of ours says so in the metadata of its consumer. Invariant: a reader that says nothing is
taken for one that knows no more than every build does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from apportion.runtime.jetstream.wire import STREAM, Wire, call_api
from apportion_schemas import CATALOGUE
from apportion_schemas.formats import BORN

NAME: Final = "apportion-reader"
KNOWS: Final = "apportion-formats"
OURS: Final = "ordered reader"
"""The description of a consumer of ours, of builds also that say no more."""
_PAGES_MAX: Final = 256


class ReaderThere(msgspec.Struct, frozen=True):
    """One reader: what it calls itself, and up to which version it knows what is not legal
    everywhere.
    """

    name: str
    formats: dict[str, int]

    def knows(self, event: str, version: int) -> bool:
        """Whether it reads the event in that version."""
        return version <= max(self.formats.get(event, 0), BORN.get(event, 0))


class _Config(msgspec.Struct, frozen=True):
    description: str = ""
    metadata: dict[str, str] = {}


class _Consumer(msgspec.Struct, frozen=True):
    config: _Config
    push_bound: bool = False


class _Page(msgspec.Struct, frozen=True):
    total: int = 0
    consumers: tuple[_Consumer, ...] | None = None


_decode = msgspec.json.Decoder(_Page).decode


def described(config: Mapping[str, object], name: str) -> dict[str, object]:
    """The settings of a consumer, with what a reader of this build says of itself.

    The server adds metadata of its own, so these are no setting that could drift.
    """
    formats = [f"{row.name}@{row.version}" for row in CATALOGUE if row.version > row.born]
    return {**config, "metadata": {NAME: name, KNOWS: ",".join(formats)}}


async def list_readers(wire: Wire) -> list[ReaderThere]:
    """All readers of ours that are there, in the account of who asks.

    Raises LedgerUnavailable, ApiRefused, NotPermitted.
    """
    found: list[_Consumer] = []
    for _ in range(_PAGES_MAX):
        page = _decode(await call_api(wire, f"CONSUMER.LIST.{STREAM}", {"offset": len(found)}))
        found += page.consumers or ()
        if not page.consumers or len(found) >= page.total:
            break
    return [
        ReaderThere(each.config.metadata.get(NAME) or "a reader of an older build",
                    _formats(each.config.metadata.get(KNOWS, "")))
        for each in found
        if each.push_bound and each.config.description == OURS
    ]  # fmt: skip


def _formats(text: str) -> dict[str, int]:
    formats = {}
    for each in text.split(","):
        name, _, version = each.partition("@")
        if version.isascii() and version.isdecimal():
            formats[name] = int(version)
    return formats
