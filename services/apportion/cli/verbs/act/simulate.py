"""`apportion simulate`: make a simulated device fail or recover, or lose a node."""

import asyncio
import contextlib
import time
from typing import Literal

import click
import msgspec

from apportion.cli.client.completion import DEVICES, NODES
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import with_ledger
from apportion.cli.client.lookup import find
from apportion.cli.exits import NotFound
from apportion.cli.render.output import print_answer
from apportion.cli.usage import VerbGroup
from apportion.core.answers.reads import DeviceAnswer, NodeDetail
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import Message
from apportion.runtime.ledger.membership import AGENT_BEAT_S, beat_of
from apportion.runtime.ledger.starting import Obeyed, Order, command_subject

TIMEOUT_S = 5.0
BEATS_ENOUGH = 3
LOOK_S = 0.2
REASON = "simulated"
NO_REASON = (
    "--reason is not supported here: a lost node sends no report, so there is nothing to record"
)
_OF_NODES = {
    ("lose", False): "is offline; it turns unready after the scheduler's --agent-grace",
    ("lose", True): "is already offline: its agent is not reporting",
    ("return", False): "is back online",
    ("return", True): "is already online: its agent is reporting",
}
# What is said after an order, by verb and whether it was so before.
_OF_DEVICES = {
    ("fail", False): "has failed",
    ("fail", True): "had already failed",
    ("recover", False): "has recovered",
    ("recover", True): "is already healthy",
}


def _no_reason(_context: click.Context, _option: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError(NO_REASON)


_TAKES_NO_REASON = click.option("--reason", hidden=True, expose_value=False, callback=_no_reason)


@click.group(cls=VerbGroup, epilog="Example:  apportion simulate fail GPU-1a2b3c4d")
def command() -> None:
    """Simulate the failure and recovery of devices, and the loss and return of nodes.

    A failed device stays failed until you use `recover`, even if `apportion up` restarts. A lost
    node stops reporting. It becomes unready after the scheduler's --agent-grace, until you use
    `return` or its agent restarts.

    If there is nothing to change, the verb exits with 0.

    Exit codes: 0 done, or nothing to do; 1 no such device or node, or not a simulated one; 3 ledger
    or gateway unreachable."""


@command.command(epilog="Example:  apportion simulate fail GPU-1a2b3c4d --reason 'XID 79'")
@click.argument("device", shell_complete=DEVICES)
@click.option("--reason", default="", help=f"Reason of the failure.  [default: {REASON}]")
@asks_both
def fail(*, where: Where, as_json: bool, device: str, reason: str) -> None:
    """Make a device fail; it takes no new pods.

    A device that has already failed keeps its reason unless you give a new one."""
    _order(where, "fail", device, reason, as_json=as_json)


@command.command(epilog="Example:  apportion simulate recover GPU-1a2b3c4d")
@click.argument("device", shell_complete=DEVICES)
@asks_both
def recover(*, where: Where, as_json: bool, device: str) -> None:
    """Make a failed device recover."""
    _order(where, "recover", device, "", as_json=as_json)


@command.command(epilog="Example:  apportion simulate lose h100-1")
@click.argument("node", shell_complete=NODES)
@_TAKES_NO_REASON
@asks_both
def lose(*, where: Where, as_json: bool, node: str) -> None:
    """Make a node go offline, as in a power failure."""
    _order_node(where, node, Order(verb="lose"), as_json=as_json)


@command.command(name="return", epilog="Example:  apportion simulate return h100-1")
@click.argument("node", shell_complete=NODES)
@_TAKES_NO_REASON
@asks_both
def come_back(*, where: Where, as_json: bool, node: str) -> None:
    """Bring a lost node back with its pods.

    Waits until the node reports again."""
    _order_node(where, node, Order(verb="return"), as_json=as_json)


def _order_node(where: Where, target: str, order: Order, *, as_json: bool) -> None:
    _, node, device = find(where, target)
    if device:
        raise NotFound(f"{target!r} is a device; give its node, {node}")
    gateway = Gateway(where.gateway_url())
    found = gateway.ask("nodes", node, answer=NodeDetail).node

    async def is_heard(ledger: JetStreamLedger) -> bool:
        heard = asyncio.Event()  # by heartbeats; the gateway may not have noticed a loss yet

        async def beat(_message: Message) -> None:
            heard.set()

        await ledger.wire.subscribe(beat_of(node)[0], beat)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), 1.5 * AGENT_BEAT_S)  # a busy machine may be late
        return heard.is_set()

    heard = not found.silent and with_ledger(where.reach(), is_heard)
    already = heard if order.verb == "return" else not heard
    _obeyed(where, node, order)  # in any case: a silent node need not be lost
    # Wait until the ledger sees the node again, so that a second `return` has nothing to do; with
    # an intake, a few heartbeats are enough.
    end_s = time.monotonic() + BEATS_ENOUGH * AGENT_BEAT_S
    while order.verb == "return" and found.silent and time.monotonic() < end_s:
        found = gateway.ask("nodes", node, answer=NodeDetail).node
        time.sleep(LOOK_S if found.silent else 0)
    said = f"{node} {_OF_NODES[order.verb, already]}"
    print_answer({"node": node, "verb": order.verb, "already": already}, said, as_json=as_json)


def _order(
    where: Where, verb: Literal["fail", "recover"], target: str, reason: str, *, as_json: bool
) -> None:
    _, node, device = find(where, target)
    if not device:
        raise NotFound(f"{target!r} is a node; give one of its devices")
    there = Gateway(where.gateway_url()).ask("nodes", node, answer=NodeDetail).devices
    found = next(each for each in there if each.device == device)
    said = said_by_agent(found)
    reason = reason or said or REASON
    already = found.healthy if verb == "recover" else said == reason
    # In any case: an earlier order may still be in progress.
    _obeyed(where, node, Order(verb=verb, device=device, reason=reason))
    done = {"node": node, "device": device, "verb": verb, "already": already}
    said = f"device {device} of {node} {_OF_DEVICES[verb, already]}"
    print_answer(done, said, as_json=as_json)


def said_by_agent(device: DeviceAnswer) -> str:
    """Return the reason that the agent gave for a failure; "" if the reason is not the agent's."""
    if not device.health_reason:
        return ""
    from apportion.core.ledger.fold import MARKED_UNHEALTHY, UNNAMED  # slow and rarely needed

    return "" if device.health_reason in {MARKED_UNHEALTHY, UNNAMED} else device.health_reason


def _obeyed(where: Where, node: str, order: Order) -> None:
    subject, asked = command_subject(node), msgspec.json.encode(order)
    reply = with_ledger(where.reach(), lambda ledger: ledger.request(subject, asked, TIMEOUT_S))
    answer = msgspec.json.decode(reply, type=Obeyed)
    if not answer.done:
        raise NotFound(f"the agent of {node} refused: {answer.error}")
