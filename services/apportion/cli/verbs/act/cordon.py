"""`apportion cordon` and `uncordon`: close a device or node, and reopen it."""

import click
import msgspec

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.cordons import cordons_of, node_now, stands_now
from apportion.cli.client.ledger import by_whom, person, run, write
from apportion.cli.client.lookup import find
from apportion.cli.exits import NotFound
from apportion.cli.render.output import print_answer, warn
from apportion.cli.usage import Verb, reasoned
from apportion.core.answers.reads import NodeDetail
from apportion.core.devices.cordons import cordoning, lifting, spoken, uncordoning
from apportion.core.explain.text.words import device_words, listed
from apportion_schemas.quantities import Payload

OFF_NAMED = 4  # devices named that stay closed


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document that `--json` prints: the event, its target and its revision."""

    event: str
    target: str
    revision: int | None
    by: str = ""
    reason: str = ""


@click.command(
    cls=Verb, epilog="Example:  apportion cordon gpu-1 --reason 'fan replaced on Monday'"
)
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@click.option("--reason", default="", callback=reasoned,
              help="Reason, for the audit trail.  [required]")  # fmt: skip
@by_whom
@asks_both
def cordon(*, where: Where, as_json: bool, target: str, reason: str, by: str) -> None:
    """Stop new placements on a device or node; running pods stay.

    Each user has a separate cordon. If you cordon again with another reason, the new reason
    replaces the previous one.

    Exit codes: 0 cordoned, or already cordoned; 1 no such device or node; 3 ledger or gateway
    unreachable."""
    who = person(by)
    basis, node, device = find(where, target)
    data = cordoning(node, device, by=who, reason=reason)
    name = device or node
    if first := run(stands_now(where, node, data)):
        said = f"{name} was already cordoned by {who} for this reason, at revision {first}"
        _tell(data, first, device or node, said, as_json=as_json)
        return
    revision = run(write(where.reach(), data, basis=basis)).revision
    _tell(
        data, revision, device or node, f"{name} cordoned at revision {revision}", as_json=as_json
    )


@click.command(
    cls=Verb, epilog="Example:  apportion uncordon gpu-1     apportion uncordon gpu-1 --all"
)
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@click.option("--reason", default="", help="Reason, for the audit trail.")
@click.option("--of", "whose", default="", metavar="NAME",
              help="Remove the cordon of this user.  [default: yours]")  # fmt: skip
@click.option("--all", "everybody", is_flag=True, help="Remove the cordons of all users.")
@by_whom
@asks_both
def uncordon(
    *, where: Where, as_json: bool, target: str, reason: str, whose: str, everybody: bool, by: str
) -> None:
    """Remove your cordon from a device or node; cordons of other users stay.

    Exit codes: 0 done; 1 no such device or node, or no cordon of that user; 3 ledger or gateway
    unreachable, or the gateway is behind the ledger."""
    if whose and everybody:
        raise click.UsageError("--of and --all exclude each other")
    who = person(by)
    _, node, device = find(where, target)
    detail = run(node_now(where, node))
    stated = cordons_of(detail, device)
    lifted = whose or who
    others = [each for each in stated if each.by != lifted]
    if not stated:
        raise NotFound(not_cordoned(detail, device))
    if not everybody and len(others) == len(stated):
        raise NotFound(
            f"{device or node} has no cordon by {lifted}; its cordons: {spoken(stated)}; "
            "remove one with --of NAME, or all with --all"
        )
    data: Payload = lifting(node, device, of=lifted, by=who, reason=reason)
    if everybody:
        data, others = uncordoning(node, device, by=who, reason=reason), []
    revision = run(write(where.reach(), data, basis=detail.revision)).revision
    reasons = spoken(each for each in stated if each not in others)
    said = f"{device or node} uncordoned at revision {revision}; removed: {reasons}"
    _tell(data, revision, device or node, said, as_json=as_json)
    if others:
        warn(f"{device or node} is still cordoned: {spoken(others)}")
    elif off := still_off(detail, device):
        warn(off)


def not_cordoned(detail: NodeDetail, device: str) -> str:
    """Return a sentence: the target has no such cordon, and what else keeps it unschedulable."""
    name = f"{device or detail.node.node} is not cordoned at revision {detail.revision}"
    if device and detail.node.cordons:
        return f"{name}; its node {detail.node.node} is: {spoken(detail.node.cordons)}"
    off = still_off(detail, device)
    return f"{name}; {off}" if off else name


def still_off(detail: NodeDetail, device: str) -> str:
    """Return a text about devices that the uncordon leaves unschedulable, or "" if none."""
    said = []
    for each in detail.devices:
        name = device_words(each.device)
        if device not in {"", each.device}:
            continue
        if not each.present:
            said.append(f"{name} is no longer reported")
        elif not each.healthy:
            said.append(f"{name} has failed: {each.health_reason or 'no reason given'}")
        elif each.cordons and not device:
            said.append(f"{name} has its own cordon: {spoken(each.cordons)}")
    return f"still not schedulable: {listed(said, OFF_NAMED)}" if said else ""


def _tell(data: Payload, revision: int | None, target: str, said: str, *, as_json: bool) -> None:
    by, reason = getattr(data, "by", ""), getattr(data, "reason", "")
    print_answer(Done(type(data).__name__, target, revision, by, reason), said, as_json=as_json)
