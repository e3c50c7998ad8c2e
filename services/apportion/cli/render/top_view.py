"""What of all devices `top` shows: filtered, sorted and scrolled by keys.

Pure, so that every key can be tried without a terminal. Invariant: what is shown is a window into
what passes the filter, and never beyond its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from apportion.core.explain.answers import DeviceAnswer
from apportion.core.explain.natural import natural

HELP: Final = "q quit   s sort   / filter   up, down, PgUp, PgDn scroll"


def _used(free: int, all_of_it: int) -> float:
    return (all_of_it - free) / all_of_it if all_of_it else 0.0


SORTS: Final[tuple[tuple[str, Callable[[DeviceAnswer], Any]], ...]] = (
    ("node", lambda d: (natural(d.node), d.index)),
    ("memory", lambda d: -_used(d.memory_free_mib, d.memory_mib)),
    ("cores", lambda d: -_used(d.cores_free, d.cores)),
    (
        "state",
        lambda d: (d.present and d.healthy and d.node_ready, not (d.cordon or d.node_cordon)),
    ),
    ("pods", lambda d: -len(d.holders)),
)
"""What `s` goes through; devices that are equal in it are by node."""


@dataclass(slots=True)
class View:
    """Which devices are shown, from which on; `typing` is whether keys go to the filter."""

    sort: int = 0
    filter: str = ""
    typing: bool = False
    offset: int = 0
    done: bool = False

    def press(self, key: str, *, rows: int) -> bool:
        """Take a key, with so many rows on the screen; whether anything is to be shown anew."""
        if not key:
            return False
        if self.typing:
            self._type(key)
            return True
        steps = {
            "up": -1, "k": -1, "down": 1, "j": 1, "page-up": -rows, "page-down": rows, " ": rows,
            "home": -self.offset, "g": -self.offset, "end": 1 << 30, "G": 1 << 30,
        }  # fmt: skip
        if key in steps:
            self.offset = max(self.offset + steps[key], 0)
        elif key == "s":
            self.sort, self.offset = (self.sort + 1) % len(SORTS), 0
        elif key == "/":
            self.typing, self.filter, self.offset = True, "", 0
        elif key == "escape":
            self.filter, self.offset = "", 0
        elif key == "q":
            self.done = True
        else:
            return False
        return True

    def _type(self, key: str) -> None:
        if key in {"enter", "escape"}:
            self.typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        self.offset = 0

    def shown(self, devices: list[DeviceAnswer], rows: int) -> tuple[list[DeviceAnswer], int]:
        """The window, and how many devices pass the filter."""
        passing = [device for device in devices if self._passes(device)]
        passing.sort(key=SORTS[0][1])
        if self.sort:
            passing.sort(key=SORTS[self.sort][1])
        self.offset = min(self.offset, max(len(passing) - rows, 0))
        return passing[self.offset : self.offset + rows], len(passing)

    def _passes(self, device: DeviceAnswer) -> bool:
        if not self.filter:
            return True
        pods = " ".join(f"{held.namespace}/{held.pod}" for held in device.holders)
        text = f"{device.node} {device.device} {device.model} {device.mode} {pods}"
        return self.filter.lower() in text.lower()

    def status(self, shown: int, passing: int) -> str:
        """The last line: what is shown, and which keys there are."""
        if self.typing:
            return f"filter: {self.filter}_   (Enter keeps it, Esc drops it)"
        last = self.offset + shown
        said = f"{self.offset + 1 if shown else 0} to {last} of {passing:,}"
        said += f" with {self.filter!r}" if self.filter else ""
        return f"{said} by {SORTS[self.sort][0]}   {HELP}"
