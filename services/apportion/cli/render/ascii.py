"""Terminals that show ASCII alone, as with LANG=C: what is drawn is drawn with what they have.

Invariant: nothing that a verb prints ends it because the terminal cannot show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TextIO

SHOWN: Final = str.maketrans(
    {
        "█": "#", "░": ".", "…": "~", "�": "?", "·": "-", "→": ">", "▲": "^", "▼": "v",
        **dict.fromkeys("─━═╌", "-"),
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
        **{chr(dots): "*" for dots in range(0x2800, 0x2900)},
    }
)  # fmt: skip
"""One cell for one cell, so that columns stay where they are."""


def ascii_only(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to draw in ASCII: the stream takes no UTF-8, or the locale names another encoding."""
    if (stream.encoding or "utf-8").lower().replace("-", "") != "utf8":
        return True
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    if locale in {"C", "POSIX"}:
        return True
    return "." in locale and "utf" not in locale.lower()


class Ascii:
    """A stream in front of another one, to which only ASCII goes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what stands for the text."""
        shown = text.translate(SHOWN).encode("ascii", "replace").decode("ascii")
        return self._stream.write(shown)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
