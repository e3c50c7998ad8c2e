"""`apportion policy`: show or set how the scheduler prefers nodes and devices."""

import textwrap
from typing import Final, get_args

import click
import msgspec

from apportion.cli.client.connection import Where, asks_both, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_now, by_whom, person, run, write
from apportion.cli.client.moments import AT, pinned
from apportion.cli.render.output import print_answer
from apportion.cli.usage import VerbGroup, hinting
from apportion.core.answers.reads import SummaryAnswer
from apportion.core.explain.text.event_text import Teller
from apportion_schemas import Policy
from apportion_schemas.operations import POLICIES

_CHOICE = click.Choice(get_args(Policy))
COLUMNS: Final = 78


@click.group(
    cls=VerbGroup,
    epilog="Example:  apportion policy set --nodes spread --reason 'fewer neighbours'",
)
def command() -> None:
    """Show or set how the scheduler chooses nodes and devices."""


@command.command(epilog="Example:  apportion policy get")
@AT
@asks_gateway
def get(*, where: Where, as_json: bool, at: str | None) -> None:
    """Show the policy in force.

    Exit codes: 0 shown; 1 no data for that time; 3 gateway unreachable."""
    gateway = Gateway(where.gateway_url())
    policy = gateway.ask("summary", answer=SummaryAnswer, query=pinned(gateway, {"at": at})).policy
    said = f"nodes {policy.node_policy}, devices {policy.device_policy}"
    print_answer(policy, said, as_json=as_json)


_INDENT: Final = " " * (max(map(len, POLICIES)) + 2)
_MEANINGS: Final = "\n".join(
    textwrap.fill(f"{name:{len(_INDENT)}}{text.prefers}", COLUMNS, subsequent_indent=_INDENT)
    for name, text in POLICIES.items()
)
SET = f"""Set the policy for all future decisions.

An option that is not given stays as it is.

\b
{_MEANINGS}

Exit codes: 0 changed; 2 nothing to change; 3 ledger or gateway unreachable."""


@command.command(
    name="set", cls=hinting(argument="--nodes {0}, --devices {0}, or both"), help=SET,
    epilog="Example:  apportion policy set --nodes binpack --devices spread",
)  # fmt: skip
@click.option("--nodes", type=_CHOICE, help="Policy for choosing a node.")
@click.option("--devices", type=_CHOICE, help="Policy for choosing devices of a node.")
@click.option("--reason", default="", help="Reason, for the audit trail.")
@by_whom
@asks_both
def set_(
    *, where: Where, as_json: bool, nodes: Policy | None, devices: Policy | None,
    reason: str, by: str,
) -> None:  # fmt: skip
    """Change the policy, from the next decision on."""
    if nodes is None and devices is None:
        raise click.UsageError("give --nodes, --devices, or both")
    now = run(by_now(where.reach()))  # keeps concurrent changes of the other setting
    summary = Gateway(where.gateway_url()).ask("summary", answer=SummaryAnswer, query=now)
    policy = summary.policy
    changed = msgspec.structs.replace(
        policy, by=person(by), reason=reason, node_policy=nodes or policy.node_policy,
        device_policy=devices or policy.device_policy,
    )  # fmt: skip
    appended = run(write(where.reach(), changed, basis=summary.revision))
    said = f"{Teller().line(changed)}, at revision {appended.revision}"
    print_answer({"revision": appended.revision, "policy": changed}, said, as_json=as_json)
