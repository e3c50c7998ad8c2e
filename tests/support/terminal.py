"""Run an `apportion` command on a terminal of its own, to test colours and live screens."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
import threading
from pathlib import Path
from typing import Self

from tests.support.polling import wait_until
from tests.support.standalone import APPORTION


class Terminal:
    """One `apportion` command on a terminal of its own. Use it in `with`, which ends it."""

    def __init__(self, *words: str, data: Path | None) -> None:
        self._words = words
        self._data = data
        self._text = b""

    def __enter__(self) -> Self:
        self._screen, keyboard = pty.openpty()
        self._process = subprocess.Popen(
            [*APPORTION, *self._words],
            stdin=keyboard, stdout=keyboard, stderr=keyboard, start_new_session=True,
            env={
                **os.environ, "APPORTION_DATA": str(self._data), "TERM": "xterm-256color",
                "COLUMNS": "160", "LINES": "50",
            },
        )  # fmt: skip
        os.close(keyboard)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join(10)
        os.close(self._screen)

    def _read(self) -> None:
        try:
            while data := os.read(self._screen, 1 << 16):
                self._text += data
        except OSError:
            return  # the other side of the terminal is closed

    def shows(self, part: str) -> None:
        """Wait until the text `part` has appeared on the screen."""
        wait_until(lambda: part.encode() in self._text, f"the screen to show {part!r}")

    def press(self, keys: str) -> None:
        """Wait until the verb reads single keys, and type these keys.

        The verb discards earlier input."""
        wait_until(self._takes_keys, "the verb to take keys one at a time")
        os.write(self._screen, keys.encode())

    def _takes_keys(self) -> bool:
        return not termios.tcgetattr(self._screen)[3] & termios.ICANON

    def ended(self) -> int:
        """Wait until the verb ends, and return its exit code."""
        return self._process.wait(60)

    def interrupted(self) -> int:
        """Press Ctrl-C, and return the verb's exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)
