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
    "it takes no reason: nobody reports a lost node, so the ledger says only that it is not heard"
)
_OF_NODES = {
    ("lose", False): "is lost now, and unready once it has not been heard for the scheduler's "
    "grace",
    ("lose", True): "is lost already: its agent is not heard",
    ("return", False): "is back",
    ("return", True): "is there already: its agent is heard",
}
# What is said after an order, by verb and whether it was so before.
_OF_DEVICES = {
    ("fail", False): "fails now",
    ("fail", True): "has failed already",
    ("recover", False): "recovers now",
    ("recover", True): "is healthy already",
}


def _no_reason(_context: click.Context, _option: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError(NO_REASON)


_TAKES_NO_REASON = click.option("--reason", hidden=True, expose_value=False, callback=_no_reason)


@click.group(epilog="Example:  apportion simulate fail GPU-1a2b3c4d")
def command() -> None:
    """Make a simulated device fail or recover, or a simulated node be lost and return.

    A failed device is told of at once, and is failed until it recovers, also when `up` begins anew.
    A lost node is not heard of any more: it is unready once the scheduler's --agent-grace has
    passed, and hands out nothing until it returns, or its agent (or `up`) begins anew.

    What is so already is said to be, and is no error.

    Exit codes: 0 done, or so already; 1 no such device or node, or it is a real one; 3 unreachable.
    """


@command.command(epilog="Example:  apportion simulate fail GPU-1a2b3c4d --reason 'XID 79'")
@click.argument("device", shell_complete=DEVICES)
@click.option("--reason", default="", help=f"What is wrong with it.  [default: {REASON}]")
@asks_both
def fail(*, where: Where, as_json: bool, device: str, reason: str) -> None:
    """Let a device fail: nothing new goes there.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so. One
    that has failed keeps its reason, unless another is given."""
    _order(where, "fail", device, reason, as_json=as_json)


@command.command(epilog="Example:  apportion simulate recover GPU-1a2b3c4d")
@click.argument("device", shell_complete=DEVICES)
@asks_both
def recover(*, where: Where, as_json: bool, device: str) -> None:
    """Let a simulated device recover that was made to fail.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so."""
    _order(where, "recover", device, "", as_json=as_json)


@command.command(epilog="Example:  apportion simulate lose h100-1")
@click.argument("node", shell_complete=NODES)
@_TAKES_NO_REASON
@asks_both
def lose(*, where: Where, as_json: bool, node: str) -> None:
    """Let a node be lost, as if its power had failed.

    It takes no reason: nobody reports a lost node, so the ledger says only that it is not heard."""
    _order_node(where, node, Order(verb="lose"), as_json=as_json)


@command.command(name="return", epilog="Example:  apportion simulate return h100-1")
@click.argument("node", shell_complete=NODES)
@_TAKES_NO_REASON
@asks_both
def come_back(*, where: Where, as_json: bool, node: str) -> None:
    """Let a lost node return, with all that was placed on it, and wait until it is heard again."""
    _order_node(where, node, Order(verb="return"), as_json=as_json)


def _order_node(where: Where, target: str, order: Order, *, as_json: bool) -> None:
    _, node, device = find(where, target)
    if device:
        raise NotFound(f"{target!r} is a device; name its node, {node}")
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
        raise NotFound(f"{target!r} is a node; name one of its devices")
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
    """Return the agent's, not Kubernetes', reason for a failure; empty if none."""
    if not device.health_reason:
        return ""
    from apportion.core.ledger.fold import MARKED_UNHEALTHY, UNNAMED  # slow and rarely needed

    return "" if device.health_reason in {MARKED_UNHEALTHY, UNNAMED} else device.health_reason


def _obeyed(where: Where, node: str, order: Order) -> None:
    subject, asked = command_subject(node), msgspec.json.encode(order)
    reply = with_ledger(where.reach(), lambda ledger: ledger.request(subject, asked, TIMEOUT_S))
    answer = msgspec.json.decode(reply, type=Obeyed)
    if not answer.done:
        raise NotFound(f"the agent of {node} refuses: {answer.error}")
