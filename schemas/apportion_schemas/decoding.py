"""Decode untrusted bytes with a single kind of error.

msgspec raises RecursionError for a document nested too deep and UnicodeDecodeError for text that is
not UTF-8, neither of which is an error of its own."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")
Data = bytes | bytearray | memoryview | str | msgspec.Raw


def from_outside(decode: Callable[[Data], T]) -> Callable[[Data], T]:
    """Return a `decode` that raises msgspec.DecodeError for everything that is not decodable."""

    def decoded(data: Data) -> T:
        try:
            return decode(data)
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None

    return decoded
