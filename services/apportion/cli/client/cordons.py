"""Read cordons from the gateway, for `cordon`, `uncordon` and `drain`.

Invariant: the answer is as of the ledger's end, because an older one may lack changes."""

import asyncio

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_now
from apportion.cli.exits import Unreachable
from apportion.core.answers.reads import CordonAnswer, NodeDetail
from apportion_schemas import DeviceCordoned, NodeCordoned


async def stands_now(where: Where, node: str, data: NodeCordoned | DeviceCordoned) -> int:
    """Return the revision of the cordon that `data` describes, or 0 if it is not in force.

    Return 0 if no gateway answers: a repeated cordon does no harm. Raises LedgerError, NotFound."""
    try:
        return stands_since(await node_now(where, node), data)
    except Unreachable:
        return 0


async def node_now(where: Where, node: str) -> NodeDetail:
    """Return the node as of the ledger's end. Raises LedgerError, NotFound, Unreachable."""
    now = await by_now(where.reach())
    gateway = Gateway(where.gateway_url())
    return await asyncio.to_thread(lambda: gateway.ask("nodes", node, answer=NodeDetail, query=now))


def stands_since(detail: NodeDetail, said: NodeCordoned | DeviceCordoned) -> int:
    """Return the revision of the cordon with the author and reason of `said`, or 0 if none."""
    device = said.device if isinstance(said, DeviceCordoned) else ""
    for each in cordons_of(detail, device):
        if (each.by, each.reason) == (said.by, said.reason):
            return each.revision
    return 0


def cordons_of(detail: NodeDetail, device: str) -> list[CordonAnswer]:
    """Return the cordons of `device`, or of the node if `device` is empty."""
    if not device:
        return list(detail.node.cordons)
    return [cordon for each in detail.devices if each.device == device for cordon in each.cordons]
