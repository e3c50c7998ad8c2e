"""`apportion top`: show every device and its pods on one screen."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Group
from rich.text import Text

from apportion.cli.client.completion import NODES
from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway, at_of
from apportion.cli.client.listing import Listed, naming_nodes
from apportion.cli.client.moments import AT, pinned
from apportion.cli.exits import Unreachable
from apportion.cli.render.output import PHASE_STYLES, Screen, console, plain, print_json, show
from apportion.cli.render.rows import Rows
from apportion.cli.render.tables import device_state, short_name, shown_phases
from apportion.cli.usage import Verb
from apportion.core.answers.reads import DeviceAnswer, RevisionAnswer, SummaryAnswer
from apportion.core.names import natural
from apportion_schemas import PolicyChanged

BAR_CELLS = 8
STATE_CELLS = 24  # width of a state on the screen
FULL, NEARLY = 0.999, 0.75
HEADER_LINES = 4
KEYS: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page-up", b"\x1b[6~": "page-down",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b": "escape", b"\r": "enter", b"\n": "enter",
    b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip
READ_MAX: Final = 1024
# waits for the next key, for some seconds: its name, a character, or nothing
Read = Callable[[float], str]


@click.command(cls=Verb, epilog="Example:  apportion top --once")
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--node", metavar="NODE", help="Show only this node.", shell_complete=NODES)
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0,
              show_default=True, metavar="SECONDS", help="Refresh interval.")  # fmt: skip
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, once: bool, node: str | None, interval_s: float, at: str | None
) -> None:
    """Watch every device: allocated memory, cores and slots, its state and its pods.

    Keys: q or Ctrl-C quits; s changes the sort order (node, memory, cores, state, pods); / filters
    by node, device, model or pod; arrows, PgUp and PgDn scroll. In a pipe, and with --json or --at,
    it prints once. For free capacity, see `apportion get devices`.

    Exit codes: 0 shown; 1 no such node, or no data for that time; 3 gateway unreachable."""
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"node": node, "at": at})
    if as_json:
        with naming_nodes(gateway, query):
            print_json(Listed(*gateway.items("devices", DeviceAnswer, query)))
        return
    out = console()
    if once or at or not out.is_terminal:
        summary = gateway.ask("summary", answer=SummaryAnswer, query=at_of(query))
        with naming_nodes(gateway, query):
            _, devices = gateway.items("devices", DeviceAnswer, query)
        out.print(_headline(summary))
        show(_devices(devices), out)
        return
    _live(out, gateway, query, interval_s)


def _live(out: Screen, gateway: Gateway, query: dict[str, str], interval_s: float) -> None:
    from rich.live import Live

    view, seen = View(), _Seen(gateway, query)
    seen.look()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for `&` jobs
    try:
        with (
            keyboard() as key,  # first, because earlier typing is lost
            Live(seen.picture(view, out), console=out, screen=True, auto_refresh=False) as live,
        ):
            looked_s = time.monotonic()
            live.refresh()
            while not view.done:
                left_s = max(looked_s + interval_s - time.monotonic(), 0.0)
                changed = view.press(key(left_s), rows=_rows(out))
                if time.monotonic() >= looked_s + interval_s:
                    changed |= seen.look()
                    looked_s = time.monotonic()
                if changed:
                    live.update(seen.picture(view, out), refresh=True)
    except KeyboardInterrupt:
        return


def _rows(out: Screen) -> int:
    return max(out.height - HEADER_LINES, 1)


class _Seen:
    def __init__(self, gateway: Gateway, query: dict[str, str]) -> None:
        self._gateway = gateway
        self._query = query
        self._summary = SummaryAnswer(revision=-1, policy=PolicyChanged(by=""))
        self._devices: list[DeviceAnswer] = []
        self._trouble = ""

    def look(self) -> bool:
        """Query the gateway. Return True on a change. Raises Unreachable only on the first call."""
        try:
            revision = self._gateway.ask("revision", answer=RevisionAnswer).revision
            if revision == self._summary.revision and not self._trouble:
                return False
            self._summary = self._gateway.ask("summary", answer=SummaryAnswer)
            with naming_nodes(self._gateway, self._query):
                _, self._devices = self._gateway.items("devices", DeviceAnswer, self._query)
            self._trouble = ""
        except Unreachable as error:
            if self._summary.revision < 0:
                raise
            self._trouble = error.message
        return True

    def picture(self, view: View, out: Screen) -> Group:
        if self._trouble:
            return Group(Text(self._trouble, "red"))
        shown, passing = view.shown(self._devices, _rows(out))
        status = plain(view.status(len(shown), passing))
        status.stylize("dim")
        headline = _headline(self._summary)
        for line in (headline, status):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(headline, _devices(shown, long=False), status)


def _headline(summary: SummaryAnswer) -> Text:
    used = summary.memory_mib - summary.memory_free_mib
    line = Text(
        f"revision {summary.revision:,}   {summary.nodes:,} nodes   "
        f"{summary.devices_open:,} of {summary.devices:,} devices schedulable   "
        f"memory {used / 1024:,.0f} of {summary.memory_mib / 1024:,.0f} GiB allocated"
    )
    before = "   pods: "
    for name, count in shown_phases(summary.phases).items():
        line.append(before).append(f"{count:,} {name}", PHASE_STYLES.get(name, ""))
        before = "  "
    return line


def _devices(devices: list[DeviceAnswer], *, long: bool = True) -> Rows:
    made = Rows("NODE", "#", "MODEL", "MODE", "MEMORY GiB", "CORES", "SLOTS USED", "STATE",
                "PODS", right=("#", "SLOTS USED"), wraps=("STATE", "PODS") if long else ("PODS",),
                drops=("MODE", "SLOTS USED", "MODEL", "CORES"))  # fmt: skip
    made.may_be_long = long
    node = ""
    for device in devices:
        memory_used = device.memory_mib - device.memory_free_mib
        cores_used = device.cores - device.cores_free
        state = device_state(device)
        if not long:  # `get devices` shows all of it
            state.truncate(STATE_CELLS, overflow="ellipsis")
        pods = plain(
            " ".join(dict.fromkeys(short_name(h.namespace, h.pod) for h in device.holders))
        )
        pods.no_wrap, pods.overflow = True, "ellipsis"  # cut at the edge of the screen
        memory = f" {memory_used / 1024:.0f}/{device.memory_mib / 1024:.0f}"
        cores = bar(cores_used, device.cores).append(f" {cores_used}")
        made.add_row(
            device.node if device.node != node else "", str(device.index),
            device.model.removeprefix("NVIDIA "), device.mode,
            bar(memory_used, device.memory_mib).append(memory),
            plain("-") if device.mode == "mig" else cores,
            f"{device.slots - device.slots_free}/{device.slots}", state, pods,
        )  # fmt: skip
        node = device.node
    return made


def bar(used: int, total: int) -> Text:
    """Return a bar of the allocated part. Only 0 is fully empty, and only 100 % is full."""
    part = used / total if total else 0.0
    cells = min(round(part * BAR_CELLS), BAR_CELLS - (part < FULL))
    cells = max(cells, 1) if used else 0
    style = "red" if part >= FULL else "yellow" if part >= NEARLY else "green"
    return Text("█" * cells, style).append("░" * (BAR_CELLS - cells), "dim")


@contextmanager
def keyboard() -> Iterator[Read]:
    """Yield a function that reads single keys, and restore the terminal at the end."""
    try:
        descriptor = sys.stdin.fileno()
        before: Any = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):

        def no_key(timeout_s: float) -> str:
            time.sleep(timeout_s)
            return ""

        yield no_key
        return
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Keys:
    """Reads one key at a time from the terminal, and buffers keys that are typed fast."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._typed = b""

    def __call__(self, timeout_s: float) -> str:
        if not self._typed:
            ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
            if not ready:
                return ""
            self._typed = os.read(self._descriptor, READ_MAX)
            if not self._typed:
                raise KeyboardInterrupt  # the terminal is gone
        for code, name in KEYS.items():
            if self._typed.startswith(code):
                self._typed = self._typed[len(code) :]
                return name
        text = self._typed.decode("utf-8", "ignore")
        self._typed = text[1:].encode()
        return text[:1]


HELP: Final = "q quit   s sort   / filter   arrows, PgUp, PgDn scroll"


def _used(free: int, all_of_it: int) -> float:
    return (all_of_it - free) / all_of_it if all_of_it else 0.0


# the orders that `s` cycles through; ties are by node
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


@dataclass(slots=True)
class View:
    """The visible devices, their order and their filter. While `typing`, keys edit the filter.

    Invariant: the visible rows never go beyond the end of the filtered devices."""

    sort: int = 0
    filter: str = ""
    typing: bool = False
    offset: int = 0
    done: bool = False

    def press(self, key: str, *, rows: int) -> bool:
        """Handle a key; return True if the screen must be redrawn."""
        if not key:
            return False
        if self.typing:
            if key in {"enter", "escape"}:
                self.typing = False
                self.filter = "" if key == "escape" else self.filter
            elif key == "backspace":
                self.filter = self.filter[:-1]
            elif len(key) == 1 and key.isprintable():
                self.filter += key
            self.offset = 0
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

    def shown(self, devices: list[DeviceAnswer], rows: int) -> tuple[list[DeviceAnswer], int]:
        """Return the devices in the window, and the number of devices that match the filter."""
        wanted = self.filter.lower()
        passing = [
            d for d in devices
            if not wanted or wanted in " ".join((
                d.node, d.device, d.model, d.mode,
                *(f"{held.namespace}/{held.pod}" for held in d.holders),
            )).lower()
        ]  # fmt: skip
        passing.sort(key=SORTS[0][1])
        if self.sort:
            passing.sort(key=SORTS[self.sort][1])
        self.offset = min(self.offset, max(len(passing) - rows, 0))
        return passing[self.offset : self.offset + rows], len(passing)

    def status(self, shown: int, passing: int) -> str:
        """Return the last line: the range shown, and the keys."""
        if self.typing:
            return f"filter: {self.filter}_   (Enter applies, Esc clears)"
        last = self.offset + shown
        said = f"{self.offset + 1 if shown else 0} to {last} of {passing:,}"
        said += f" matching {self.filter!r}" if self.filter else ""
        return f"{said}, sorted by {SORTS[self.sort][0]}   {HELP}"
