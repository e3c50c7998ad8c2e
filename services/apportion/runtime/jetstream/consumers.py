"""Creates consumers of the stream under names that an identity may use, and later reports changed
settings.

The server lets an identity manage only consumers named `<identity>-<number>`. If a process is
killed, its consumer stays, and another process of the identity may replace it. A reader lists the
formats that it supports in its consumer's metadata; without a list, it supports only what every
build supports. Invariant: a consumer that delivers is never replaced."""

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.wire import STREAM, Wire, call_api
from apportion.runtime.ledger.port import LedgerDrifted, LedgerUnavailable, NotPermitted
from apportion_schemas import CATALOGUE
from apportion_schemas.catalogue import BORN

NAME: Final = "apportion-reader"
KNOWS: Final = "apportion-formats"
OURS: Final = "ordered reader"  # description of our consumers, also in builds without metadata
_PAGES_MAX: Final = 256
_NOT_FOUND: Final = frozenset({10014})
EXISTS: Final = frozenset({10013, 10148})  # a consumer of that name exists with other settings
# Numbers that every identity has; a few have more, and one that many share may use any name.
_ALWAYS: Final = 4
_NOBODY: Final = "reader"


class ReaderThere(msgspec.Struct, frozen=True):
    """A live reader: its name, and for each event type the newest version that it can read."""

    name: str
    formats: dict[str, int]

    def knows(self, event: str, version: int) -> bool:
        """Return True if the reader can read this version of the event."""
        return version <= max(self.formats.get(event, 0), BORN.get(event, 0))


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as the server describes it, with the number of undelivered records."""

    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0
    push_bound: bool = False


class _Page(msgspec.Struct, frozen=True):
    total: int = 0
    consumers: tuple[ConsumerInfo, ...] | None = None


_decode = msgspec.json.Decoder(_Page).decode


def described(config: Mapping[str, object], name: str) -> dict[str, object]:
    """Return `config` with metadata: the reader's name, and the event formats that it reads."""
    formats = [f"{row.name}@{row.version}" for row in CATALOGUE if row.version > row.born]
    return {**config, "metadata": {NAME: name, KNOWS: ",".join(formats)}}


async def list_readers(wire: Wire) -> list[ReaderThere]:
    """Return the live readers of the ledger. Raises LedgerUnavailable, NotPermitted."""
    found: list[ConsumerInfo] = []
    for _ in range(_PAGES_MAX):
        page = _decode(await call_api(wire, f"CONSUMER.LIST.{STREAM}", {"offset": len(found)}))
        found += page.consumers or ()
        if not page.consumers or len(found) >= page.total:
            break
    readers = []
    for each in found:
        if each.push_bound and each.config.get("description") == OURS:
            metadata: dict[str, str] = each.config.get("metadata") or {}
            name = metadata.get(NAME) or "a reader from an older build"
            pairs = (known.partition("@") for known in metadata.get(KNOWS, "").split(","))
            readers.append(ReaderThere(name, {
                event: int(version)
                for event, _, version in pairs
                if version.isascii() and version.isdecimal()
            }))  # fmt: skip
    return readers


_decode_info = msgspec.json.Decoder(ConsumerInfo).decode


async def create(
    wire: Wire, settings: Mapping[str, object], subjects: Sequence[str], *, first: str = ""
) -> dict[str, object]:
    """Create a consumer of `subjects` under a free name, preferably `first`.

    Returns the settings. Raises NotPermitted, or LedgerUnavailable if all names are in use."""
    for number, name in enumerate(_names(wire.owner or _NOBODY, first)):
        try:
            made = await _create(wire, {**settings, "name": name}, subjects)
        except NotPermitted:
            if number == 0:
                raise
            if number == _ALWAYS:
                continue  # the identity is not shared by many
            raise LedgerUnavailable(
                f"all consumers allowed for {wire.user} on {STREAM} are in use; create a separate "
                "user for each process with `apportion user add`"
            ) from None
        if made is not None:
            return made
    raise AssertionError("the names are endless")


def _names(owner: str, first: str) -> Iterator[str]:
    numbers = (f"{owner}-{number}" for number in itertools.count())
    few = list(itertools.islice(numbers, _ALWAYS))
    if first in few:
        few.remove(first)
        few.insert(0, first)
    yield from few
    yield f"{owner}-{secrets.token_hex(8)}"
    yield from numbers


async def _create(
    wire: Wire, settings: dict[str, object], subjects: Sequence[str]
) -> dict[str, object] | None:
    """Create a consumer and return its settings, or None if the name is in use."""
    name = str(settings["name"])
    api, filtered = creation(name, subjects)
    settings |= filtered
    config = described(settings, wire.user or _NOBODY)
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    for tried in (False, True):
        if await call_api(wire, api, body, absent=EXISTS):
            return settings
        if tried:
            break  # another process was quicker
        answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}", absent=_NOT_FOUND)
        if answer and _decode_info(answer).push_bound:
            break
        if answer:
            await call_api(wire, f"CONSUMER.DELETE.{STREAM}.{name}", absent=_NOT_FOUND)
    return None


def creation(name: str, subjects: Sequence[str]) -> tuple[str, dict[str, object]]:
    """Return the API subject that creates the consumer, and its filter settings."""
    api = f"CONSUMER.CREATE.{STREAM}.{name}"
    if len(subjects) == 1:
        return f"{api}.{subjects[0]}", {"filter_subject": subjects[0]}
    return api, {"filter_subjects": list(subjects)}


async def read_info(wire: Wire, name: str) -> ConsumerInfo:
    """Return the consumer of that name. Raises LedgerUnavailable, also if it does not exist."""
    return _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}"))


async def look(wire: Wire, wanted: Mapping[str, object]) -> list[LedgerDrifted]:
    """Return the changed settings of a consumer; none if it is gone. Raises LedgerUnavailable."""
    name = str(wanted["name"])
    answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}", absent=_NOT_FOUND)
    found = _decode_info(answer).config if answer else wanted
    return stream.drift(f"consumer {name}", found, wanted)
