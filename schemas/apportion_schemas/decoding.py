"""Decoding of bytes from outside, with one kind of error for all that can be wrong with them.

msgspec raises RecursionError for a document that is nested too deep, and UnicodeDecodeError for
text that is not UTF-8. A reader that handles msgspec's own errors alone would end with either."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")
Data = bytes | bytearray | memoryview | str | msgspec.Raw


def from_outside(decode: Callable[[Data], T]) -> Callable[[Data], T]:
    """Return `decode` with msgspec.DecodeError as the error for all that it cannot decode."""

    def decoded(data: Data) -> T:
        try:
            return decode(data)
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None

    return decoded
