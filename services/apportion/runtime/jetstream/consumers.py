"""Consumers of the stream: made under the names of their owner, and looked at from then on.

The server lets an identity make, look at and delete consumers `<its name>-<number>` and no others,
so nobody can change, or use up, those of another. A number is free if no consumer has it, or one
that delivers to nobody, as whoever was killed leaves behind. Processes of one identity share its
numbers. A reader of ours says in its consumer's metadata which formats it knows.

A consumer whose filter was changed still beats, and delivers nothing. Invariants: a consumer that
delivers to somebody is not taken from him; a setting that we asked for and that the server now has
otherwise is named; one that is gone is nobody's drift, for its reader makes another; a reader that
says no formats is taken for one that knows no more than every build does."""

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
OURS: Final = "ordered reader"
"""The description of a consumer of ours, of builds also that say no more."""
_PAGES_MAX: Final = 256
_NOT_FOUND: Final = frozenset({10014})
EXISTS: Final = frozenset({10013, 10148})
"""There is one of that name, with other settings."""
_ALWAYS: Final = 4
"""So many numbers every identity has; a few have more, and one that many share has any name."""
_NOBODY: Final = "reader"


class ReaderThere(msgspec.Struct, frozen=True):
    """One reader: what it calls itself, and up to which version it knows what is not legal
    everywhere."""

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

    The server adds metadata of its own, so these are no setting that could drift."""
    formats = [f"{row.name}@{row.version}" for row in CATALOGUE if row.version > row.born]
    return {**config, "metadata": {NAME: name, KNOWS: ",".join(formats)}}


async def list_readers(wire: Wire) -> list[ReaderThere]:
    """All readers of ours that are there, in the account of who asks.

    Raises LedgerUnavailable, NotPermitted."""
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


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as its server describes it, and how many records wait for it."""

    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0
    push_bound: bool = False


_decode_info = msgspec.json.Decoder(ConsumerInfo).decode


async def create(
    wire: Wire, settings: Mapping[str, object], subjects: Sequence[str], *, first: str = ""
) -> dict[str, object]:
    """Make a consumer of `subjects` under a free name of ours, `first` if that is free.

    Returns its settings, with its name. Raises LedgerUnavailable, also where all names are taken,
    NotPermitted."""
    for number, name in enumerate(_names(wire.owner or _NOBODY, first)):
        try:
            made = await _create(wire, {**settings, "name": name}, subjects)
        except NotPermitted:
            if number == 0:
                raise
            if number == _ALWAYS:
                continue  # it is not shared by many
            raise LedgerUnavailable(
                f"all consumers that {wire.user} may have on {STREAM} are in use; give each "
                "process an identity of its own: `apportion user add`"
            ) from None
        if made is not None:
            return made
    raise AssertionError("names do not end")


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
    """The settings of the consumer that was made; None where somebody is at the other end of it."""
    api, filtered = creation(str(settings["name"]), subjects)
    settings |= filtered
    config = described(settings, wire.user or _NOBODY)
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    for tried in (False, True):
        if await call_api(wire, api, body, absent=EXISTS):
            return settings
        # At the second try somebody else was quicker.
        if tried or await _in_use(wire, str(settings["name"])):
            break
    return None


def creation(name: str, subjects: Sequence[str]) -> tuple[str, dict[str, object]]:
    """By which request a consumer of these subjects is made, and the setting that names them."""
    api = f"CONSUMER.CREATE.{STREAM}.{name}"
    if len(subjects) == 1:
        return f"{api}.{subjects[0]}", {"filter_subject": subjects[0]}
    return api, {"filter_subjects": list(subjects)}


async def _in_use(wire: Wire, name: str) -> bool:
    """Whether somebody is at the other end of it; if nobody is, it is gone on return."""
    answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}", absent=_NOT_FOUND)
    if answer and _decode_info(answer).push_bound:
        return True
    if answer:
        await call_api(wire, f"CONSUMER.DELETE.{STREAM}.{name}", absent=_NOT_FOUND)
    return False


async def read_info(wire: Wire, name: str) -> ConsumerInfo:
    """The consumer of that name. Raises LedgerUnavailable, also where there is none."""
    return _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}"))


async def look(wire: Wire, wanted: Mapping[str, object]) -> list[LedgerDrifted]:
    """One error for each of these settings that the consumer has otherwise; none if it is gone.

    Raises LedgerUnavailable."""
    name = str(wanted["name"])
    answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}", absent=_NOT_FOUND)
    found = _decode_info(answer).config if answer else wanted
    return stream.drift(f"consumer {name}", found, wanted)
