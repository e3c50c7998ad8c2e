"""`apportion get`: lists of objects, as of one revision or as they change."""

import signal
from functools import partial
from typing import Any, NamedTuple

import click

from apportion.cli.client import completion
from apportion.cli.client.connection import Command, Option, Where, asks_gateway
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
from apportion.cli.client.moments import AT, AT_LEAST, dated
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


class _Phase(click.Choice[str]):
    """A phase; `pending`, as in kubectl and the API, means `waiting`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(WAITING if value == PENDING else value, param, ctx)


class _Lists(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known_elsewhere(args[0])
        return super().resolve_command(ctx, args)


@click.group(cls=_Lists, epilog="Example:  apportion get pods --phase waiting")
def command() -> None:
    """List what there is, all of it or what is named.

    Names of one will do (`get pod NAME`), and po, no, gpus and npus.

    Exit codes: 0 listed (an empty list too); 1 one that was named is not there, or nothing is known
    of the moment; 3 the gateway cannot be reached."""


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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for `&` jobs
    try:
        listing.watch()
    except KeyboardInterrupt:
        return


_NODE = click.option(
    "--node", metavar="NODE", help="Only what is on this node.", shell_complete=completion.NODES,
    multiple=True, callback=once,
)  # fmt: skip
_NAMESPACES = (  # -A as in kubectl
    click.option("-n", "--namespace", metavar="NAMESPACE", help="Only this namespace.",
                 multiple=True, callback=once),
    click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, as without -n."),
)  # fmt: skip
_PHASE = click.option(
    "--phase", type=_Phase(PHASES),
    help=f"Only pods in this phase; {PENDING}, as --json has it, is {WAITING}.",
)  # fmt: skip
_EVERY: tuple[Option, ...] = (
    click.option(
        "-o", "--output", "form", type=click.Choice(FORMS), default=None,
        help="In another form: more columns, JSON, YAML, or the names alone.",
    ),
    click.option(
        "-w", "--watch", is_flag=True, help="Go on, and print what changes; a gateway that "
        "answers no more is waited for. Ctrl-C ends it."
    ),
    AT_LEAST, AT, asks_gateway,
)  # fmt: skip


class _List(NamedTuple):
    """A list as a verb, with its own options, an example and help."""

    kind: Kind
    metavar: str
    complete: completion.Complete
    options: tuple[Option, ...]
    example: str
    help: str


LISTS = (
    _List(PODS, "NAME", completion.PODS, (*_NAMESPACES, _PHASE, _NODE),
          "-n training --phase waiting", """Pods, in the order of their submission.

    REVISION is of the newest that happened to it: it was submitted, found to wait, placed, bound or
    allocated. AGE is since its submission."""),
    _List(PLACEMENTS, "NAME", completion.PODS, (*_NAMESPACES, _PHASE, _NODE), "--node gpu-1 --json",
          "Live placements, in the order in which they were decided."),
    _List(NODES, "NODE", completion.NODES, (), "", "Nodes and what of them is in use."),
    _List(DEVICES, "DEVICE", completion.DEVICES, (_NODE,), "--node gpu-1",
          """Devices, what of them is free, and who is on them.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so. Where
    several do, all of them are listed."""),
    _List(GANGS, "GANG", completion.GANGS, (), "",
          "Gangs, and how many of their pods are in which phase."),
    _List(QUEUES, "QUEUE", completion.QUEUES, (), "",
          """Queues that were told of, what each may hold, and how much of that its pods hold.

    A queue that is not there has weight 1 and no limits."""),
    _List(QUOTAS, "QUOTA", completion.QUOTAS, _NAMESPACES, "-n research",
          "Quotas of devices, by namespace, and how much of each the pods there hold."),
)  # fmt: skip
for _each in LISTS:
    _what = _each.kind.what
    _verb: Command = partial(_list, _each.kind)
    _names: Option = click.argument(
        "names", nargs=-1, metavar=f"[{_each.metavar}]...", shell_complete=_each.complete
    )
    for _option in reversed((*_each.options, _names, *_EVERY)):
        _verb = _option(_verb)
    command.command(
        _what, help=_each.help, epilog=f"Example:  apportion get {_what} {_each.example}".rstrip()
    )(_verb)
