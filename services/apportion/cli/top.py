"""`apportion top`: every device and who is on it, on one screen."""

from __future__ import annotations

import signal
import time

import click
from rich.console import Console, Group
from rich.text import Text

from apportion.cli.asking import Gateway
from apportion.cli.connection import Where, asks_gateway
from apportion.cli.exits import Unreachable
from apportion.cli.listing import Listed
from apportion.cli.moments import AT, pinned
from apportion.cli.output import PHASE_STYLES, console, plain, print_json, table
from apportion.cli.rows import Rows
from apportion.cli.tables import device_state
from apportion.core.explain.answers import (
    DeviceAnswer,
    DevicePage,
    Holder,
    RevisionAnswer,
    SummaryAnswer,
)

BAR_CELLS = 8
FULL, NEARLY = 0.999, 0.75
HEADER_LINES = 4
ROWS_MAX = 1_000


@click.command(epilog="Example:  apportion top --once")
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option("--node", metavar="NODE", help="Only this node.")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0,
              show_default=True, metavar="SECONDS", help="How often to look.")  # fmt: skip
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, once: bool, node: str | None, interval_s: float, at: str | None
) -> None:
    """Every device: what of its memory and cores is allocated, its state, and who is on it.

    In a pipe, and with --json or --at, one picture is printed as with --once. Ctrl-C ends it.

    Exit codes: 0 shown; 1 no such node, or nothing is known of the moment; 3 the gateway cannot
    be reached.
    """
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"node": node, "at": at})
    if as_json:
        print_json(Listed(*gateway.items("devices", DeviceAnswer, query)))
        return
    out = console()
    if once or at or not out.is_terminal:
        out.print(_picture(gateway, query))
        return
    _live(out, gateway, query, interval_s)


def _live(out: Console, gateway: Gateway, query: dict[str, str], interval_s: float) -> None:
    from rich.live import Live

    shown = gateway.ask("revision", answer=RevisionAnswer).revision
    picture = _picture(gateway, query, rows=out.height - HEADER_LINES)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    try:
        with Live(picture, console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture, refresh=True)
                time.sleep(interval_s)
                try:
                    revision = gateway.ask("revision", answer=RevisionAnswer).revision
                    if revision == shown:
                        continue
                    picture = _picture(gateway, query, rows=out.height - HEADER_LINES)
                    shown = revision
                except Unreachable as error:
                    picture = Group(Text(error.message, "red"))
                    shown = -1
    except KeyboardInterrupt:
        return


def _picture(gateway: Gateway, query: dict[str, str], *, rows: int | None = None) -> Group:
    """All devices, or as many as fit into `rows`; no more than these are asked for."""
    then = {"at": query["at"]} if "at" in query else {}
    summary = gateway.ask("summary", answer=SummaryAnswer, query=then)
    if rows is None:
        _, shown = gateway.items("devices", DeviceAnswer, query)
        more = False
    else:
        rows = min(max(rows, 1), ROWS_MAX)
        page = gateway.ask("devices", answer=DevicePage, query={**query, "limit": rows})
        shown = list(page.items[:rows])
        more = bool(page.next) or len(page.items) > rows
    parts: list[Text | Rows] = [_headline(summary), _devices(shown)]
    if more:
        parts.append(Text("and more: --node NODE", "dim"))
    return Group(*parts)


def _headline(summary: SummaryAnswer) -> Text:
    used = summary.memory_mib - summary.memory_free_mib
    line = Text(
        f"revision {summary.revision:,}   {summary.nodes:,} nodes   "
        f"{summary.devices_open:,} of {summary.devices:,} devices open   "
        f"memory {used / 1024:,.0f} of {summary.memory_mib / 1024:,.0f} GiB allocated   "
    )
    for name, count in summary.phases.items():
        line.append(f"{count:,} {name}  ", PHASE_STYLES.get(name, ""))
    return line


def _devices(devices: list[DeviceAnswer]) -> Rows:
    made = table("NODE", "#", "MODEL", "MODE", "MEMORY GiB", "CORES", "SLOTS", "STATE", "PODS",
                 right=("#", "SLOTS"), wraps=("PODS",))  # fmt: skip
    node = ""
    for device in devices:
        memory_used = device.memory_mib - device.memory_free_mib
        cores_used = device.cores - device.cores_free
        made.add_row(
            plain(device.node if device.node != node else ""),
            str(device.index),
            plain(device.model.removeprefix("NVIDIA ")),
            device.mode,
            bar(memory_used, device.memory_mib).append(
                f" {memory_used / 1024:.0f}/{device.memory_mib / 1024:.0f}"
            ),
            bar(cores_used, device.cores).append(f" {cores_used}"),
            f"{device.slots - device.slots_free}/{device.slots}",
            device_state(device),
            _cut(" ".join(dict.fromkeys(map(_short_name, device.holders)))),
        )
        node = device.node
    return made


def _cut(text: str) -> Text:
    """Text of one line, cut where the screen ends."""
    cut = plain(text)
    cut.no_wrap, cut.overflow = True, "ellipsis"
    return cut


def _short_name(holder: Holder) -> str:
    """The pod, with its namespace unless that is `default`."""
    return holder.pod if holder.namespace == "default" else f"{holder.namespace}/{holder.pod}"


def bar(used: int, total: int) -> Text:
    """How much is allocated; a little is shown as one cell, and only all of it as a full bar."""
    part = used / total if total else 0.0
    cells = min(round(part * BAR_CELLS), BAR_CELLS - (part < FULL))
    cells = max(cells, 1) if used else 0
    style = "red" if part >= FULL else "yellow" if part >= NEARLY else "green"
    return Text("█" * cells, style).append("░" * (BAR_CELLS - cells), "dim")
