"""`apportion get`: print lists of objects, as of one revision or as they change."""

import signal
from functools import partial
from typing import Any, NamedTuple

import click

from apportion.cli.client import completion
from apportion.cli.client.connection import Option, Where, asks_gateway
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
from apportion.cli.usage import VerbGroup, known_elsewhere, once
from apportion.core.explain.text.vocabulary import PENDING
from apportion.runtime.service.options import with_options

PHASES = (PENDING, "placed", "bound", "allocated", "rejected")
ALIASES = {
    "pod": "pods", "po": "pods", "placement": "placements", "node": "nodes", "no": "nodes",
    "device": "devices", "gpu": "devices", "gpus": "devices", "npu": "devices", "npus": "devices",
    "gang": "gangs", "queue": "queues", "quota": "quotas", "resourcequota": "quotas",
    "resourcequotas": "quotas",
}  # fmt: skip


class _Lists(VerbGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known_elsewhere(args[0])
        return super().resolve_command(ctx, args)


@click.group(cls=_Lists, epilog="Example:  apportion get pods --phase pending")
def command() -> None:
    """List pods, nodes, devices, gangs, queues or quotas, all or by name.

    Singular names and short names work too: `get pod NAME`, po, no, gpus, npus.

    Exit codes: 0 listed, even if the list is empty; 1 no such object, or no data for that time; 3
    gateway unreachable."""


def _list(
    kind: Kind, *, where: Where, as_json: bool, names: tuple[str, ...], form: Any, watch: bool,
    **query: Any,
) -> None:  # fmt: skip
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and -o {form} exclude each other")
    if watch and query.get("at") is not None:
        raise click.UsageError("--watch and --at exclude each other: the past does not change")
    if query.pop("all_namespaces", False) and query.get("namespace"):
        raise click.UsageError("-A and -n exclude each other")
    gateway = Gateway(where.gateway_url())
    if kind is PODS and form == "wide" and not watch:  # a watch would print every new forecast
        query["start"] = 1
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
    "--node", metavar="NODE", help="Show only objects on this node.", multiple=True,
    shell_complete=completion.NODES, callback=once,
)  # fmt: skip
_NAMESPACES = (  # -A as in kubectl
    click.option("-n", "--namespace", metavar="NAMESPACE", help="Show only this namespace.",
                 multiple=True, callback=once),
    click.option("-A", "--all-namespaces", is_flag=True,
                 help="Show all namespaces; this is the default."),
)  # fmt: skip
_PHASE = click.option(
    "--phase", type=click.Choice(PHASES), help="Show only pods in this phase.",
)  # fmt: skip
_EVERY: tuple[Option, ...] = (
    click.option(
        "-o", "--output", "form", type=click.Choice(FORMS), default=None,
        help="Output format; wide has more columns, name has only names.",
    ),
    click.option(
        "-w", "--watch", is_flag=True,
        help="Keep printing changes until Ctrl-C; reconnects to the gateway.",
    ),
    AT_LEAST, AT, asks_gateway,
)  # fmt: skip


class _List(NamedTuple):
    """The command of one list, with its own options, example and help."""

    kind: Kind
    metavar: str
    complete: completion.Complete
    options: tuple[Option, ...]
    example: str
    help: str


LISTS = (
    _List(PODS, "NAME", completion.PODS, (*_NAMESPACES, _PHASE, _NODE),
          "-n training --phase pending", """List pods in the order of submission.

    REVISION is the revision of the latest phase change. AGE is the time since submission. With
    `-o wide`, START is when a pending pod should start, with a probability of 80 %."""),
    _List(PLACEMENTS, "NAME", completion.PODS, (*_NAMESPACES, _PHASE, _NODE), "--node gpu-1 --json",
          "List live placements in the order of decision."),
    _List(NODES, "NODE", completion.NODES, (), "", "List nodes and their usage."),
    _List(DEVICES, "DEVICE", completion.DEVICES, (_NODE,), "--node gpu-1",
          """List devices, their free capacity and their pods.

    This list also accepts a prefix that several devices share, and then shows all of them."""),
    _List(GANGS, "GANG", completion.GANGS, (), "",
          "List gangs and the phases of their pods."),
    _List(QUEUES, "QUEUE", completion.QUEUES, (), "",
          """List queues, their limits and usage.

    A queue that is not listed has weight 1 and no limits."""),
    _List(QUOTAS, "QUOTA", completion.QUOTAS, _NAMESPACES, "-n research",
          "List device quotas by namespace, and their usage."),
)  # fmt: skip
for _each in LISTS:
    _what = _each.kind.what
    _names: Option = click.argument(
        "names", nargs=-1, metavar=f"[{_each.metavar}]...", shell_complete=_each.complete
    )
    _verb = with_options(partial(_list, _each.kind), *_each.options, _names, *_EVERY)
    command.command(
        _what, help=_each.help, epilog=f"Example:  apportion get {_what} {_each.example}".rstrip()
    )(_verb)
