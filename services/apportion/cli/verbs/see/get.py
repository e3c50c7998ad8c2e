"""`apportion get`: what there is, as of one revision, or as it changes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import click

from apportion.cli.client import completion
from apportion.cli.client.connection import Command, Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.listing import (
    DEVICES,
    FORMS,
    GANGS,
    NODES,
    PLACEMENTS,
    PODS,
    QUEUES,
    QUOTAS,
    Kind,
    Listing,
)
from apportion.cli.client.moments import AT, dated
from apportion.cli.render.tables import Look
from apportion.cli.usage import known_elsewhere, once
from apportion.core.explain.text.vocabulary import WAITING

PENDING = "pending"
PHASES = (WAITING, "placed", "bound", "allocated", "rejected")
ALIASES = {
    "pod": "pods", "po": "pods", "placement": "placements", "node": "nodes", "no": "nodes",
    "device": "devices", "gpu": "devices", "gpus": "devices", "npu": "devices", "npus": "devices",
    "gang": "gangs", "queue": "queues", "quota": "quotas", "resourcequota": "quotas",
    "resourcequotas": "quotas",
}  # fmt: skip
_NODE = click.option(
    "--node", metavar="NODE", help="Only what is on this node.", shell_complete=completion.NODES,
    multiple=True, callback=once,
)  # fmt: skip


def _namespaces(command: Command) -> Command:
    """Which namespace; and as kubectl has it, that it is all of them, as without a word."""
    for option in (
        click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, as without -n."),
        click.option("-n", "--namespace", metavar="NAMESPACE", help="Only this namespace.",
                     multiple=True, callback=once),
    ):  # fmt: skip
        command = option(command)
    return command


class _Phase(click.Choice[str]):
    """A phase; `pending`, as kubectl and the API have it, is `waiting`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click."""
        return super().convert(WAITING if value == PENDING else value, param, ctx)


_PHASE = click.option(
    "--phase", type=_Phase(PHASES),
    help=f"Only pods in this phase; {PENDING}, as --json has it, is {WAITING}.",
)  # fmt: skip


def _lists(metavar: str, complete: completion.Complete) -> Callable[[Command], Command]:
    """What every list has: names, a form, to watch, a moment."""

    def decorate(command: Command) -> Command:
        for option in (
            asks_gateway,
            AT,
            click.option(
                "--at-least", type=click.IntRange(min=0), metavar="REVISION",
                help="Wait until the gateway has folded this revision.",
            ),
            click.option(
                "-w", "--watch", is_flag=True, help="Go on, and print what changes; a gateway that "
                "answers no more is waited for. Ctrl-C ends it."
            ),
            click.option(
                "-o", "--output", "form", type=click.Choice(FORMS), default=None,
                help="In another form: more columns, JSON, YAML, or the names alone.",
            ),
            click.argument("names", nargs=-1, metavar=f"[{metavar}]...", shell_complete=complete),
        ):  # fmt: skip
            command = option(command)
        return command

    return decorate


class _Lists(click.Group):
    """The lists, which have other names as well, as people know them from kubectl."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click."""
        known_elsewhere(args[0])
        return super().resolve_command(ctx, args)


@click.group(cls=_Lists, epilog="Example:  apportion get pods --phase waiting")
def command() -> None:
    """List what there is, all of it or what is named.

    Names of one will do (`get pod NAME`), and po, no, gpus and npus.

    Exit codes: 0 listed (an empty list too); 1 one that was named is not there, or nothing is known
    of the moment; 3 the gateway cannot be reached.
    """


@command.command(epilog="Example:  apportion get pods -n training --phase waiting")
@_namespaces
@_PHASE
@_NODE
@_lists("NAME", completion.PODS)
def pods(**given: Any) -> None:
    """Pods, in the order of their submission.

    REVISION is of the newest that happened to it: it was submitted, found to wait, placed, bound or
    allocated. AGE is since its submission.
    """
    _list(PODS, **given)


@command.command(epilog="Example:  apportion get placements --node gpu-1 --json")
@_namespaces
@_PHASE
@_NODE
@_lists("NAME", completion.PODS)
def placements(**given: Any) -> None:
    """Live placements, in the order in which they were decided."""
    _list(PLACEMENTS, **given)


@command.command(epilog="Example:  apportion get nodes")
@_lists("NODE", completion.NODES)
def nodes(**given: Any) -> None:
    """Nodes and what of them is in use."""
    _list(NODES, **given)


@command.command(epilog="Example:  apportion get devices --node gpu-1")
@_NODE
@_lists("DEVICE", completion.DEVICES)
def devices(**given: Any) -> None:
    """Devices, what of them is free, and who is on them.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so. Where
    several do, all of them are listed.
    """
    _list(DEVICES, **given)


@command.command(epilog="Example:  apportion get gangs")
@_lists("GANG", completion.GANGS)
def gangs(**given: Any) -> None:
    """Gangs, and how many of their pods are in which phase."""
    _list(GANGS, **given)


@command.command(epilog="Example:  apportion get queues")
@_lists("QUEUE", completion.QUEUES)
def queues(**given: Any) -> None:
    """Queues that were told of, what each may hold, and how much of that its pods hold.

    A queue that is not there has weight 1 and no limits.
    """
    _list(QUEUES, **given)


@command.command(epilog="Example:  apportion get quotas -n research")
@_namespaces
@_lists("QUOTA", completion.QUOTAS)
def quotas(**given: Any) -> None:
    """Quotas of devices, by namespace, and how much of each the pods there hold."""
    _list(QUOTAS, **given)


def _list(
    kind: Kind, *, where: Where, as_json: bool, names: tuple[str, ...], form: Any, watch: bool,
    **query: Any,
) -> None:  # fmt: skip
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and -o {form}: choose one")
    if watch and query.get("at") is not None:
        raise click.UsageError("--watch and --at: the past does not change")
    if query.pop("all_namespaces", False) and query.get("namespace"):
        raise click.UsageError("-A and -n: choose one")
    if query.get("phase") == WAITING:
        query["phase"] = PENDING
    gateway = Gateway(where.gateway_url())
    asked, now = dated(gateway, query)
    look = Look(wide=form == "wide", now=None if watch else now)
    form = "json" if as_json else form or ""
    listing = Listing(gateway, kind, names, asked, form, look, where.gateway_url)
    if not watch:
        listing.print()
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    try:
        listing.watch()
    except KeyboardInterrupt:
        return
