"""Keys of a terminal, one at a time and without the Enter key.

Invariant: however the block ends, the terminal is as it was.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

NAMES: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page-up", b"\x1b[6~": "page-down",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b": "escape", b"\r": "enter", b"\n": "enter",
    b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip
READ_MAX: Final = 1024

Read = Callable[[float], str]
"""The next key within so many seconds: its name, a character, or nothing."""


@contextmanager
def keyboard() -> Iterator[Read]:
    """Reads keys of standard input; where that is no terminal there are none."""
    try:
        descriptor = sys.stdin.fileno()
        before: Any = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield _none
        return
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _none(timeout_s: float) -> str:
    select.select([], [], [], timeout_s)
    return ""


class _Keys:
    """What was typed and not yet taken: who types fast, or pastes, loses nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._typed = b""

    def __call__(self, timeout_s: float) -> str:
        """See Read."""
        if not self._typed:
            ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
            if not ready:
                return ""
            self._typed = os.read(self._descriptor, READ_MAX)
            if not self._typed:
                raise KeyboardInterrupt  # the terminal is gone
        for code, name in NAMES.items():
            if self._typed.startswith(code):
                self._typed = self._typed[len(code) :]
                return name
        text = self._typed.decode("utf-8", "ignore")
        self._typed = text[1:].encode()
        return text[:1]
