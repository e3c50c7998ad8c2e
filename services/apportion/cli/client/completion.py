"""What the Tab key offers: the names of pods, nodes, devices and other things that there are.

Names come from the gateway, in one question that waits for a second at most. Invariant: whatever
goes wrong, the shell gets no names and no error.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from apportion.cli.client.connection import GATEWAY_ENV, Where, default_data
from apportion.cli.client.gateway_client import LIMIT, Gateway
from apportion.core.answers.reads import (
    DeviceAnswer,
    GangAnswer,
    NodeAnswer,
    Page,
    PodAnswer,
    QueueAnswer,
    QuotaAnswer,
)

TIMEOUT_S = 1.0
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _pods(gateway: Gateway) -> list[str]:
    """Names in the namespace `default`, others with theirs before them."""
    page = gateway.ask("pods", answer=Page[PodAnswer], query={"limit": LIMIT})
    default = [pod.name for pod in page.items if pod.namespace == "default"]
    return default + [f"{pod.namespace}/{pod.name}" for pod in page.items]


def _nodes(gateway: Gateway) -> list[str]:
    page = gateway.ask("nodes", answer=Page[NodeAnswer], query={"limit": LIMIT})
    return [node.node for node in page.items]


def _devices(gateway: Gateway) -> list[str]:
    page = gateway.ask("devices", answer=Page[DeviceAnswer], query={"limit": LIMIT})
    return [device.device for device in page.items]


def _gangs(gateway: Gateway) -> list[str]:
    page = gateway.ask("gangs", answer=Page[GangAnswer], query={"limit": LIMIT})
    return [gang.group for gang in page.items]


def _queues(gateway: Gateway) -> list[str]:
    page = gateway.ask("queues", answer=Page[QueueAnswer], query={"limit": LIMIT})
    return [queue.queue for queue in page.items]


def _quotas(gateway: Gateway) -> list[str]:
    page = gateway.ask("quotas", answer=Page[QuotaAnswer], query={"limit": LIMIT})
    return [f"{quota.namespace}/{quota.quota}" for quota in page.items]


def _complete(*lists: Callable[[Gateway], list[str]]) -> Complete:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del param
        given = ctx.params.get("gateway") or os.environ.get(GATEWAY_ENV, "")
        where = Where(data=ctx.params.get("data") or default_data(), gateway=given)
        try:
            gateway = Gateway(where.gateway_url(), timeout_s=TIMEOUT_S, patience_s=0.0)
            names = [name for names_of in lists for name in names_of(gateway)]
        except click.ClickException:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


PODS = _complete(_pods)
NODES = _complete(_nodes)
DEVICES = _complete(_devices)
GANGS = _complete(_gangs)
QUEUES = _complete(_queues)
QUOTAS = _complete(_quotas)
TARGETS = _complete(_nodes, _devices)
"""For verbs that take a node or a device."""
ANYTHING = _complete(_nodes, _devices, _pods)
