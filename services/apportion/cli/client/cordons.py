"""Cordons as the ledger has them, for `cordon`, `uncordon` and `drain`.

Invariant: that a cordon stands is said by all that the ledger holds, never by what the gateway
happens to have folded: whoever reads it takes the node for closed."""

import asyncio

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_now
from apportion.cli.exits import Unreachable
from apportion.core.answers.reads import CordonAnswer, NodeDetail
from apportion_schemas import DeviceCordoned, NodeCordoned


def cordoning(node: str, device: str, *, by: str, reason: str) -> NodeCordoned | DeviceCordoned:
    """What the ledger is told of a cordon: of the device, or the node where none is named."""
    if device:
        return DeviceCordoned(device=device, by=by, reason=reason)
    return NodeCordoned(node=node, by=by, reason=reason)


async def stands_now(where: Where, node: str, data: NodeCordoned | DeviceCordoned) -> int:
    """At which revision this was said that stands now; 0 where nobody can say that it does.

    So one that lags behind costs a cordon once more, and never a node that stays on offer.

    Raises LedgerError, NotFound."""
    try:
        return stands_since(await node_now(where, node), data)
    except Unreachable:
        return 0


async def node_now(where: Where, node: str) -> NodeDetail:
    """The node by all that the ledger holds: the gateway may not have read the newest of it.

    Raises LedgerError, NotFound, Unreachable."""
    now = await by_now(where.reach())
    gateway = Gateway(where.gateway_url())
    return await asyncio.to_thread(lambda: gateway.ask("nodes", node, answer=NodeDetail, query=now))


def stands_since(detail: NodeDetail, said: NodeCordoned | DeviceCordoned) -> int:
    """At which revision the same person cordoned the same for the same reason; 0 for never.

    To say it again would only move the revision since which it stands."""
    device = said.device if isinstance(said, DeviceCordoned) else ""
    for each in cordons_of(detail, device):
        if (each.by, each.reason) == (said.by, said.reason):
            return each.revision
    return 0


def cordons_of(detail: NodeDetail, device: str) -> list[CordonAnswer]:
    """The reasons that stand against the device, or the node where none is named."""
    if not device:
        return list(detail.node.cordons)
    return [cordon for each in detail.devices if each.device == device for cordon in each.cordons]
