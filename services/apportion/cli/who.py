"""`apportion who`: who holds a device or what of a node, who held it, and by which decision."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from apportion.cli.asking import Gateway
from apportion.cli.completing import TARGETS
from apportion.cli.connection import Where, asks_gateway
from apportion.cli.exits import NotFound
from apportion.cli.listing import Listed
from apportion.cli.moments import AT, FORMS, clock, head_since, pinned
from apportion.cli.output import console, print_json, show, table
from apportion.cli.rows import Rows
from apportion.core.explain.past_answers import WhoPage, WhoRow
from apportion.core.explain.words import device_words

PAGE = 1_000


@click.command(epilog="Example:  apportion who GPU-1a2b3c4d --since -2h")
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@AT
@click.option("--since", metavar="MOMENT",
              help=f"Everybody who held it since then, up to --at or now: {FORMS}.")  # fmt: skip
@asks_gateway
def command(*, where: Where, as_json: bool, target: str, at: str | None, since: str | None) -> None:
    """Who holds a device, or the devices of a node: pod, share, and the decision that gave it.

    Exit codes: 0 shown, also if nobody does; 1 there never was such a device or node, or nothing is
    known of the moment; 3 the gateway cannot be reached.
    """
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"at": at, "since": since})
    try:
        page = _all(gateway, {**query, "node": target})
    except NotFound:
        page = _of_device(gateway, query, target)
    revision, items = page.revision, list(page.items)
    if since:
        said = head_since(since, page.since, datetime.now(UTC))
        console(stderr=True).print(said, style="dim", soft_wrap=True)
    if as_json:
        print_json(Listed(revision, items))
    elif items:
        show(_rows(items))
    else:
        held = f"since {since}" if since else f"at revision {revision}"
        console(stderr=True).print(f"nobody held anything of {target} {held}")


def _of_device(gateway: Gateway, query: dict[str, object], target: str) -> WhoPage:
    """What is told of the device. Raises NotFound, which minds that it is no node either."""
    try:
        return _all(gateway, {**query, "device": target})
    except NotFound as error:
        if str(error).startswith("there never was a device"):
            raise NotFound(
                f"there never was a node or device {target!r}; `apportion get nodes` and "
                "`apportion get devices` list those that are there"
            ) from None
        raise


def _all(gateway: Gateway, query: dict[str, object]) -> WhoPage:
    """All pages as one, each up to the revision of the first."""
    items: list[WhoRow] = []
    behind = ""
    while True:
        asked = {**query, "limit": PAGE, **({"continue": behind} if behind else {})}
        page = gateway.ask("who", answer=WhoPage, query=asked)
        items += page.items
        behind = page.next
        query = {**query, "at": page.revision, "since": page.since}
        if not behind:
            return msgspec.structs.replace(page, items=tuple(items))


def _rows(items: list[WhoRow]) -> Rows:
    """A table; without the columns that would say the same, or nothing, in every row."""
    containers = len({item.container for item in items}) > 1
    ended = any(item.to_revision for item in items)
    made = table("NODE", "DEVICE", "POD", *(["CONTAINER"] if containers else []), "MEMORY", "CORES",
                 "FROM", *(["UNTIL"] if ended else []), "DECISION",
                 right=("MEMORY", "CORES", "DECISION"),
                 drops=("CONTAINER", "CORES", "NODE", "MEMORY", "DECISION"))  # fmt: skip
    for item in items:
        until = clock(item.to_time) if item.to_revision else ""
        made.add_row(
            item.node, device_words(item.device), f"{item.namespace}/{item.pod}",
            *([item.container] if containers else []), f"{item.memory_mib:,} MiB", f"{item.cores}",
            clock(item.from_time), *([until] if ended else []), str(item.decision_revision),
        )  # fmt: skip
    return made
