"""Decode untrusted bytes so that every failure raises msgspec.DecodeError.

By itself, msgspec also raises RecursionError for too deep nesting, and UnicodeDecodeError for text
that is not UTF-8."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")
Data = bytes | bytearray | memoryview | str | msgspec.Raw


def from_outside(decode: Callable[[Data], T]) -> Callable[[Data], T]:
    """Wrap `decode` so that every failure to decode raises msgspec.DecodeError."""

    def decoded(data: Data) -> T:
        try:
            return decode(data)
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None

    return decoded
