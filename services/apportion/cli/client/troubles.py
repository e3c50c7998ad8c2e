"""What goes wrong beside a verb, as with its connection, said as verbs say things.

A verb has the clients of services, which log. Invariant: on standard error is a sentence and what
it is about, and no form of a service's log: no level, no name of a module, no time.
"""

from __future__ import annotations

import io
import json
import time
from typing import Any, Final

from apportion.cli.render.output import console, plain
from apportion.runtime.process.logs import configure_logs

TOGETHER_S: Final = 5.0
OF_A_LOG: Final = frozenset(("event", "level", "logger", "time", "service"))


class _Said(io.StringIO):
    """Where log lines in JSON go, one at a time; of several connections that end together one."""

    def __init__(self) -> None:
        super().__init__()
        self._last, self._again_s = "", 0.0

    def write(self, line: str, /) -> int:
        """See StringIO; nothing is kept."""
        event: dict[str, Any] = json.loads(line)
        about = ", ".join(f"{name} {said}" for name, said in event.items() if name not in OF_A_LOG)
        text = f"{event['event']}: {about}" if about else str(event["event"])
        if text != self._last or time.monotonic() > self._again_s:
            console(stderr=True).print(plain(text), style="yellow", soft_wrap=True)
        self._last, self._again_s = text, time.monotonic() + TOGETHER_S
        return len(line)


def say_troubles() -> None:
    """From now on what is logged in this process as a warning, or worse, is said."""
    configure_logs(service="cli", level="warning", form="json", stream=_Said())
