"""`apportion simulate`: let a simulated device fail and recover, or a whole node be lost."""

from __future__ import annotations

import asyncio
import contextlib
import time

import click
import msgspec

from apportion.cli.asking import Gateway
from apportion.cli.completing import DEVICES, NODES
from apportion.cli.connection import Where, asks_both
from apportion.cli.cordon import find
from apportion.cli.exits import NotFound
from apportion.cli.output import console, plain, print_json
from apportion.cli.writing import open_ledger, run
from apportion.core.explain.answers import NodeDetail
from apportion.runtime.jetstream.wire import Message
from apportion.runtime.ledger.beats import AGENT_BEAT_S, beat_of
from apportion_schemas.catalogue import token

TIMEOUT_S = 5.0
BEATS_ENOUGH = 3
LOOK_S = 0.2


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent is asked on `apportion.command.agent.<node>`."""

    verb: str
    device: str = ""
    reason: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What the agent of a simulated node answers to a request."""

    done: bool
    error: str = ""


@click.group(epilog="Example:  apportion simulate fail GPU-1a2b3c4d")
def command() -> None:
    """Make a simulated device fail or recover, or a simulated node be lost and return.

    A failed device is told of at once. A lost node is not heard of any more: it is unready once the
    scheduler's --agent-grace has passed, and hands out nothing until it returns.

    Exit codes: 0 done; 1 no such device or node, it is a real one, or what is to recover or return
    is well; 3 unreachable.
    """


@command.command(epilog="Example:  apportion simulate fail GPU-1a2b3c4d --reason 'XID 79'")
@click.argument("device", shell_complete=DEVICES)
@click.option("--reason", default="", help="What is wrong with it.")
@asks_both
def fail(*, where: Where, as_json: bool, device: str, reason: str) -> None:
    """Let a device fail: nothing new goes there.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so.
    """
    _order(where, Order("fail", device, reason), as_json=as_json)


@command.command(epilog="Example:  apportion simulate recover GPU-1a2b3c4d")
@click.argument("device", shell_complete=DEVICES)
@asks_both
def recover(*, where: Where, as_json: bool, device: str) -> None:
    """Let a simulated device recover that was made to fail.

    Of a device's id the beginning will do: four characters after GPU-, if no other begins so. Of
    one that is healthy it says so, with exit code 1.
    """
    _order(where, Order("recover", device), as_json=as_json)


@command.command(epilog="Example:  apportion simulate lose h100-1")
@click.argument("node", shell_complete=NODES)
@asks_both
def lose(*, where: Where, as_json: bool, node: str) -> None:
    """Let a node be lost, as if its power had failed."""
    _order_node(where, node, Order("lose"), as_json=as_json)


@command.command(name="return", epilog="Example:  apportion simulate return h100-1")
@click.argument("node", shell_complete=NODES)
@asks_both
def come_back(*, where: Where, as_json: bool, node: str) -> None:
    """Let a lost node return, with all that was placed on it, and wait until it is heard again.

    Of one whose agent is heard it says so, with exit code 1.
    """
    _order_node(where, node, Order("return"), as_json=as_json)


def _order_node(where: Where, target: str, order: Order, *, as_json: bool) -> None:
    _, node, device = find(where, target)
    if device:
        raise NotFound(f"{target!r} is a device; name its node, {node}")
    found = Gateway(where.gateway_url()).ask("nodes", node, answer=NodeDetail).node
    if order.verb == "return" and not found.silent and run(_is_heard(where, node)):
        raise NotFound(f"node {node} is heard: there is nothing to return from")
    _obeyed(where, node, order)
    if order.verb == "return" and found.silent:
        _heard_again(where, node)
    if as_json:
        print_json({"node": node, "verb": order.verb})
    else:
        lost = "is lost now, and unready once it has not been heard for the scheduler's grace"
        console().print(plain(f"{node} {lost if order.verb == 'lose' else 'is back'}"))


def _order(where: Where, order: Order, *, as_json: bool) -> None:
    _, node, device = find(where, order.device)
    if not device:
        raise NotFound(f"{order.device!r} is a node; name one of its devices")
    order = msgspec.structs.replace(order, device=device)
    there = Gateway(where.gateway_url()).ask("nodes", node, answer=NodeDetail).devices
    _obeyed(where, node, order)  # also of a healthy one: its failure may be under way
    if order.verb == "recover" and any(each.healthy for each in there if each.device == device):
        raise NotFound(f"device {device} of {node} is healthy: there is nothing to recover from")
    if as_json:
        print_json({"node": node, "device": device, "verb": order.verb})
    else:
        done = "fails" if order.verb == "fail" else "recovers"
        console().print(plain(f"device {device} of {node} {done} now"))


def _obeyed(where: Where, node: str, order: Order) -> None:
    """Raises NotFound where the agent says no."""
    answer = run(_ask(where, node, order))
    if not answer.done:
        raise NotFound(f"the agent of {node} refuses: {answer.error}")


def _heard_again(where: Where, node: str) -> None:
    """Return once the ledger has heard of the node again: so it is back when we say so, and a
    second `return` finds nothing to do. The time of a few beats is enough where somebody listens.
    """
    gateway, end_s = Gateway(where.gateway_url()), time.monotonic() + BEATS_ENOUGH * AGENT_BEAT_S
    while gateway.ask("nodes", node, answer=NodeDetail).node.silent and time.monotonic() < end_s:
        time.sleep(LOOK_S)


async def _is_heard(where: Where, node: str) -> bool:
    """Whether the node's agent beats: of one that was lost a moment ago nobody else knows it."""
    heard = asyncio.Event()

    async def beat(_message: Message) -> None:
        heard.set()

    async with open_ledger(where.reach()) as ledger:
        await ledger.wire.subscribe(beat_of(node)[0], beat)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), AGENT_BEAT_S)
    return heard.is_set()


async def _ask(where: Where, node: str, order: Order) -> Answer:
    async with open_ledger(where.reach()) as ledger:
        subject = f"apportion.command.agent.{token(node)}"
        reply = await ledger.request(subject, msgspec.json.encode(order), TIMEOUT_S)
    return msgspec.json.decode(reply, type=Answer)
