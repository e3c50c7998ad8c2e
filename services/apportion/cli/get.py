"""`apportion get`: what there is, as of one revision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

from apportion.cli import tables
from apportion.cli.asking import Gateway
from apportion.cli.connection import Where, asks_gateway
from apportion.cli.moments import AT, pinned
from apportion.cli.output import console, print_json, show
from apportion.cli.rows import Rows
from apportion.core.explain.answers import (
    DeviceAnswer,
    GangAnswer,
    NodeAnswer,
    PlacementAnswer,
    PodAnswer,
)

PHASES = ("pending", "refused", "placed", "bound", "allocated", "rejected")
_AT_LEAST = click.option(
    "--at-least", type=click.IntRange(min=0), metavar="REVISION",
    help="Wait until the gateway has folded this revision.",
)  # fmt: skip
_NODE = click.option("--node", metavar="NODE", help="Only what is on this node.")
_NAMESPACE = click.option("-n", "--namespace", metavar="NAMESPACE", help="Only this namespace.")
_PHASE = click.option("--phase", type=click.Choice(PHASES), help="Only pods in this phase.")


@click.group(epilog="Example:  apportion get pods --phase refused")
def command() -> None:
    """List what there is.

    Exit codes: 0 listed (an empty list too); 1 nothing is known of the moment; 3 the gateway
    cannot be reached.
    """


@command.command(epilog="Example:  apportion get pods -n training --phase refused")
@_NAMESPACE
@_PHASE
@_NODE
@_AT_LEAST
@AT
@asks_gateway
def pods(*, where: Where, as_json: bool, **query: Any) -> None:
    """Pods, in the order of their submission."""
    _show(where, "pods", PodAnswer, tables.pods, as_json=as_json, query=query)


@command.command(epilog="Example:  apportion get placements --node gpu-1 --json")
@_NAMESPACE
@_PHASE
@_NODE
@_AT_LEAST
@AT
@asks_gateway
def placements(*, where: Where, as_json: bool, **query: Any) -> None:
    """Live placements, in the order in which they were decided."""
    _show(where, "placements", PlacementAnswer, tables.placements, as_json=as_json, query=query)


@command.command(epilog="Example:  apportion get nodes")
@_AT_LEAST
@AT
@asks_gateway
def nodes(*, where: Where, as_json: bool, **query: Any) -> None:
    """Nodes and what of them is in use."""
    _show(where, "nodes", NodeAnswer, tables.nodes, as_json=as_json, query=query)


@command.command(epilog="Example:  apportion get devices --node gpu-1")
@_NODE
@_AT_LEAST
@AT
@asks_gateway
def devices(*, where: Where, as_json: bool, **query: Any) -> None:
    """Devices, what of them is free, and who is on them."""
    _show(where, "devices", DeviceAnswer, tables.devices, as_json=as_json, query=query)


@command.command(epilog="Example:  apportion get gangs")
@_AT_LEAST
@AT
@asks_gateway
def gangs(*, where: Where, as_json: bool, **query: Any) -> None:
    """Gangs, and how many of their pods are in which phase."""
    _show(where, "gangs", GangAnswer, tables.gangs, as_json=as_json, query=query)


class Listed(msgspec.Struct, frozen=True):
    """What `--json` prints: the whole list, and the revision as of which its last page is."""

    revision: int
    items: list[Any]


def _show(
    where: Where,
    what: str,
    item: type[Any],
    as_table: Callable[[Iterable[Any]], Rows],
    *,
    as_json: bool,
    query: dict[str, Any],
) -> None:
    gateway = Gateway(where.gateway_url())
    revision, items = gateway.items(what, item, pinned(gateway, query))
    if as_json:
        print_json(Listed(revision, items))
        return
    if items:
        show(as_table(items))
    else:
        console(stderr=True).print(f"no {what} at revision {revision}")
