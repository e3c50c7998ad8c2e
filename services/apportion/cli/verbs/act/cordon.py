"""`apportion cordon` and `uncordon`: close a device or node, and reopen it."""

from collections.abc import Iterable

import click
import msgspec

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.cordons import cordoning, cordons_of, node_now, stands_now
from apportion.cli.client.ledger import by_whom, person, run, write
from apportion.cli.client.lookup import find
from apportion.cli.exits import NotFound
from apportion.cli.render.output import print_answer, warn
from apportion.cli.usage import reasoned
from apportion.core.answers.reads import CordonAnswer, NodeDetail
from apportion.core.explain.text.event_text import listed
from apportion.core.explain.text.words import device_words
from apportion_schemas import DeviceCordonLifted, DeviceUncordoned, NodeCordonLifted, NodeUncordoned
from apportion_schemas.quantities import Payload

OFF_NAMED = 4  # devices named that stay closed


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `--json` prints: the event, its target and its revision."""

    event: str
    target: str
    revision: int | None
    by: str = ""
    reason: str = ""


@click.command(epilog="Example:  apportion cordon gpu-1 --reason 'fan replaced on Monday'")
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@click.option("--reason", default="", callback=reasoned,
              help="Why, for whoever asks later.  [required]")  # fmt: skip
@by_whom
@asks_both
def cordon(*, where: Where, as_json: bool, target: str, reason: str, by: str) -> None:
    """Take a device or a node off offer: nothing new goes there, what runs there stays.

    What others said against it stands beside it. Your own reason takes the place of the one before;
    the same once more changes nothing, and is answered with the revision of the first.
    Of a device's id the beginning will do: four characters after GPU-, if no other begins so.

    Exit codes: 0 done; 1 no such device or node; 3 the ledger or gateway cannot be reached."""
    who = person(by)
    basis, node, device = find(where, target)
    data = cordoning(node, device, by=who, reason=reason)
    since = f"{device or node} is cordoned since revision"
    if first := run(stands_now(where, node, data)):
        said = f"{since} {first} by {who} for that reason: nothing was changed"
        _tell(data, first, device or node, said, as_json=as_json)
        return
    revision = run(write(where.reach(), data, basis=basis)).revision
    _tell(data, revision, device or node, f"{since} {revision}", as_json=as_json)


@click.command(epilog="Example:  apportion uncordon gpu-1     apportion uncordon gpu-1 --all")
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@click.option("--reason", default="", help="Why, for whoever asks later.")
@click.option("--of", "whose", default="", metavar="NAME",
              help="Whose reason to lift.  [your own]")  # fmt: skip
@click.option("--all", "everybody", is_flag=True, help="Lift every reason, whoever gave it.")
@by_whom
@asks_both
def uncordon(
    *, where: Where, as_json: bool, target: str, reason: str, whose: str, everybody: bool, by: str
) -> None:
    """Put a device or a node back on offer, as far as your own reason keeps it off.

    Where others have reasons of their own these stand, until they are lifted too. Of a device's id
    the beginning will do: four characters after GPU-, if no other begins so.

    Exit codes: 0 done; 1 no such device or node, or nobody of that name has a reason against it;
    3 the ledger or gateway cannot be reached, or the gateway is behind the ledger."""
    if whose and everybody:
        raise click.UsageError("give --of NAME or --all, not both")
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
            f"{lifted} has no reason against {device or node}, but others have: "
            f"{spoken(stated)}; lift one with --of NAME, or all with --all"
        )
    data: Payload
    if everybody:
        data = (
            DeviceUncordoned(device=device, by=who, reason=reason)
            if device
            else NodeUncordoned(node=node, by=who, reason=reason)
        )
        others = []
    else:
        data = (
            DeviceCordonLifted(device=device, of=lifted, by=who, reason=reason)
            if device
            else NodeCordonLifted(node=node, of=lifted, by=who, reason=reason)
        )
    revision = run(write(where.reach(), data, basis=detail.revision)).revision
    reasons = spoken(each for each in stated if each not in others)
    said = f"lifted from {device or node} at revision {revision}: {reasons}"
    _tell(data, revision, device or node, said, as_json=as_json)
    if others:
        warn(f"{device or node} is cordoned still: {spoken(others)}")
    elif off := still_off(detail, device):
        warn(off)


def not_cordoned(detail: NodeDetail, device: str) -> str:
    """Return that the device, or else the node, has no cordon, and what is closed."""
    name = f"{device or detail.node.node} is not cordoned at revision {detail.revision}"
    if device and detail.node.cordons:
        return f"{name}; its node {detail.node.node} is: {spoken(detail.node.cordons)}"
    off = still_off(detail, device)
    return f"{name}; {off}" if off else name


def still_off(detail: NodeDetail, device: str) -> str:
    """List closed devices that an uncordon does not reopen; empty if there are none."""
    said = []
    for each in detail.devices:
        name = device_words(each.device)
        if device not in {"", each.device}:
            continue
        if not each.present:
            said.append(f"{name} is not reported any more")
        elif not each.healthy:
            said.append(f"{name} has failed: {each.health_reason or 'no reason given'}")
        elif each.cordons and not device:
            said.append(f"{name} is cordoned itself: {spoken(each.cordons)}")
    return f"off offer still: {listed(said, OFF_NAMED)}" if said else ""


def spoken(cordons: Iterable[CordonAnswer]) -> str:
    """Return each reason with its author."""
    return "; ".join(f"{each.reason} ({each.by})" for each in cordons)


def _tell(data: Payload, revision: int | None, target: str, said: str, *, as_json: bool) -> None:
    by, reason = getattr(data, "by", ""), getattr(data, "reason", "")
    print_answer(Done(type(data).__name__, target, revision, by, reason), said, as_json=as_json)
