"""Shell completion: offer names of pods, nodes, devices and other objects.

Invariant: if the gateway does not answer within a second, the shell gets no names and no error."""

import os
from collections.abc import Callable
from typing import TypeVar

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
T = TypeVar("T")
Names = Callable[[Gateway], list[str]]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _pods(gateway: Gateway) -> list[str]:
    page = gateway.ask("pods", answer=Page[PodAnswer], query={"limit": LIMIT})
    # Pods of the namespace `default` can be named without it.
    default = [pod.name for pod in page.items if pod.namespace == "default"]
    return default + [f"{pod.namespace}/{pod.name}" for pod in page.items]


def _list(what: str, item: type[T], name: Callable[[T], str]) -> Names:
    def names(gateway: Gateway) -> list[str]:
        page: Page[T] = gateway.ask(what, answer=Page[item], query={"limit": LIMIT})  # type: ignore[valid-type]
        return [name(each) for each in page.items]

    return names


def _complete(*lists: Names) -> Complete:
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


_nodes = _list("nodes", NodeAnswer, lambda node: node.node)
_devices = _list("devices", DeviceAnswer, lambda device: device.device)
PODS = _complete(_pods)
NODES = _complete(_nodes)
DEVICES = _complete(_devices)
GANGS = _complete(_list("gangs", GangAnswer, lambda gang: gang.group))
QUEUES = _complete(_list("queues", QueueAnswer, lambda queue: queue.queue))
QUOTAS = _complete(_list("quotas", QuotaAnswer, lambda each: f"{each.namespace}/{each.quota}"))
TARGETS = _complete(_nodes, _devices)  # for verbs that take a node or a device
ANYTHING = _complete(_nodes, _devices, _pods)
