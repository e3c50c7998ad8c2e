"""What became of a consumer since it was made: whoever can change one can make its reader deaf.

A consumer whose filter was changed still beats, and delivers nothing. Invariant: a setting that we
asked for and that the server now has otherwise is named; one that is gone is nobody's drift, for
its reader makes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Wire, call_api
from apportion.runtime.ledger.port import LedgerDrifted, LedgerUnavailable

NOT_FOUND = 10014


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as its server describes it, and how many records wait for it."""

    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0


_decode_info = msgspec.json.Decoder(ConsumerInfo).decode


async def read_info(wire: Wire, name: str) -> ConsumerInfo:
    """The consumer of that name. Raises LedgerUnavailable, also where there is none."""
    try:
        return _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}"))
    except ApiRefused as refused:
        raise LedgerUnavailable(str(refused)) from refused


def drift(
    name: str, found: Mapping[str, object], wanted: Mapping[str, object]
) -> list[LedgerDrifted]:
    """One error for each setting of `wanted` that `found` has otherwise."""
    return [
        LedgerDrifted(f"consumer {name} {setting}", found.get(setting), value)
        for setting, value in wanted.items()
        if found.get(setting) != value and (found.get(setting) or value)
    ]


async def look(wire: Wire, wanted: Mapping[str, object]) -> list[LedgerDrifted]:
    """See `drift`, for the consumer that was made with these settings; none where it is gone.

    Raises LedgerUnavailable.
    """
    name = str(wanted["name"])
    try:
        answer = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{name}")
    except ApiRefused as refused:
        if refused.error.err_code == NOT_FOUND:
            return []
        raise LedgerUnavailable(str(refused)) from refused
    return drift(name, _decode_info(answer).config, wanted)
