"""Dicts that drop their oldest entries, so that input from others cannot fill our memory."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def remember(known: dict[K, V], key: K, value: V, *, most: int) -> None:
    """Make `key` the newest entry of a dict that keeps the newest `most` entries."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]
