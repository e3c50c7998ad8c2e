"""Consumers of the stream: made under the names of their owner, and looked at from then on.

The server lets an identity make, look at and delete consumers `<its name>-<number>` and no others,
so nobody can change, or use up, those of another. A number is free if no consumer has it, or one
that delivers to nobody, as whoever was killed leaves behind. Processes of one identity share its
numbers.

A consumer whose filter was changed still beats, and delivers nothing. Invariants: a consumer that
delivers to somebody is not taken from him; a setting that we asked for and that the server now has
otherwise is named; one that is gone is nobody's drift, for its reader makes another.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from apportion.runtime.jetstream import readers, stream
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Wire, call_api
from apportion.runtime.ledger.port import LedgerDrifted, LedgerUnavailable, NotPermitted

NOT_FOUND = 10014
EXISTS: Final = frozenset({10013, 10148})
"""There is one of that name, with other settings."""
_ALWAYS: Final = 4
"""So many numbers every identity has; a few have more, and one that many share has any name."""
_NOBODY: Final = "reader"


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
    NotPermitted.
    """
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
    config = readers.described(settings, wire.user or _NOBODY)
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    for tried in (False, True):
        try:
            await call_api(wire, api, body)
        except ApiRefused as refused:
            if refused.error.err_code not in EXISTS:
                raise LedgerUnavailable(str(refused)) from refused
        else:
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
    try:
        if _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}")).push_bound:
            return True
        await call_api(wire, f"CONSUMER.DELETE.{STREAM}.{name}")
    except ApiRefused as refused:
        if refused.error.err_code != NOT_FOUND:
            raise LedgerUnavailable(str(refused)) from refused
    return False


async def read_info(wire: Wire, name: str) -> ConsumerInfo:
    """The consumer of that name. Raises LedgerUnavailable, also where there is none."""
    try:
        return _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}"))
    except ApiRefused as refused:
        raise LedgerUnavailable(str(refused)) from refused


async def look(wire: Wire, wanted: Mapping[str, object]) -> list[LedgerDrifted]:
    """One error for each of these settings that the consumer has otherwise; none if it is gone.

    Raises LedgerUnavailable.
    """
    name = str(wanted["name"])
    try:
        answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}")
    except ApiRefused as refused:
        if refused.error.err_code == NOT_FOUND:
            return []
        raise LedgerUnavailable(str(refused)) from refused
    return stream.drift(f"consumer {name}", _decode_info(answer).config, wanted)
