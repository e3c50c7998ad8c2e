"""Constraints in words: what a pod accepts of nodes and devices, and the limits on it that no node
is at fault for: queues, quotas and claims on volumes.

Amounts are said in the unit of the resource, as Kubernetes names it. Invariants: what keeps a pod
from every node is said once, whatever nodes are short of beside it; a pod that accepts any device
has no words here, so that nothing is said of wishes that it does not have.
"""

from collections.abc import Iterable
from typing import Final

from apportion.core.placement.feasibility.causes import of_kind
from apportion.core.placement.feasibility.descriptors import Kind
from apportion_schemas import (
    DeviceConstraints,
    PodRefused,
    QueueShortage,
    QuotaShortage,
    RefusalCode,
    Shape,
    VolumeShortage,
)

_C = RefusalCode

LIMIT_CODES: Final = of_kind(Kind.LIMIT)
"""Refusals that a pod's queue or namespace is the cause of, and no node."""
VOLUME_CLAIMS: Final = {
    "bound": "it is bound",
    "first-consumer": "it is bound once a pod has a node",
    "unbound": "it is not bound yet",
    "unavailable": "no volume for it can be made or found",
    "lost": "it has lost its volume",
    "missing": "there is no such claim",
    "deleting": "it is being deleted",
    "in-use": "another pod has it, and only one may (ReadWriteOncePod)",
}
"""The state of a PersistentVolumeClaim in words."""


def of_refusal(refused: PodRefused) -> list[str]:
    """What keeps the pod from every node, and is no node's fault."""
    limits = [volume(refused.volume)] if refused.volume is not None else []
    limits += [queue(refused.queue)] if refused.queue is not None else []
    return limits + ([quota(refused.quota)] if refused.quota is not None else [])


def volume(shortage: VolumeShortage) -> str:
    """What keeps a pod from every node, as in `its PersistentVolumeClaim data is not bound yet`."""
    return f"its PersistentVolumeClaim {shortage.claim}: {VOLUME_CLAIMS[shortage.state]}"


def queue(shortage: QueueShortage) -> str:
    """What keeps a pod out of its queue, as in `its queue ml may hold 1 more … and it needs 2`."""
    if not shortage.resource:
        return f"its queue {shortage.queue} is closed"
    needed, available = (
        of_resource(shortage.resource, much) for much in (shortage.needed, shortage.available)
    )
    return (
        f"its queue {shortage.queue} may hold {available} more of {shortage.resource}, "
        f"and {needed} would be needed"
    )


def quota(shortage: QuotaShortage) -> str:
    """What keeps a pod out of its namespace, as in `the quota gpus of its namespace allows 4 …`."""
    return (
        f"the quota {shortage.quota} of its namespace allows {shortage.most:,} of "
        f"{shortage.resource}, pods held {shortage.used:,}, and {shortage.needed:,} more would be "
        "needed"
    )


def of_resource(resource: str, value: int) -> str:
    """An amount in the unit of a resource as Kubernetes names it."""
    unit = {"cpu": " CPU", "memory": " MiB"}.get(resource, "")
    return number_of_resource(resource, value) + unit


def number_of_resource(resource: str, value: int) -> str:
    """The same without its unit."""
    return f"{value / 1000:,g}" if resource == "cpu" else f"{value:,}"


LABELS_CHARS: Final = 200
CARDS_NAMED: Final = 8
_OPERATORS: Final = {
    "In": "in", "NotIn": "not in", "Exists": "there", "DoesNotExist": "not there",
    "Gt": "above", "Lt": "below",
}  # fmt: skip


def labels(shape: Shape) -> str:
    """The labels of a node that the pod selects, as in `zone=b, disk in (ssd, nvme)`; empty where
    its wishes are several, of which any will do.
    """
    node = shape.node
    if len(node.required) > 1:
        return ""
    said = [f"{key}={value}" for key, value in sorted(node.selector.items())]
    for expression in node.required[0] if node.required else ():
        values = ", ".join(expression.values)
        operator = _OPERATORS[expression.operator]
        said.append(f"{expression.key} {operator}" + (f" ({values})" if values else ""))
    whole = ", ".join(said)
    return whole if len(whole) <= LABELS_CHARS else f"{whole[:LABELS_CHARS]}…"


def types(shape: Shape) -> str:
    """The types of devices that the pod accepts, as in `H100 or A100`; empty for any."""
    only, but = shape.devices.use_types, shape.devices.nouse_types
    if only and but:
        return f"{' or '.join(only)}, and not {' or '.join(but)}"
    return " or ".join(only) or (f"other than {' or '.join(but)}" if but else "")


def resources(shape: Shape) -> str:
    """The extended resources that the pod wants of its node."""
    return " or ".join(sorted(shape.node.extended))


def modes(shape: Shape) -> str:
    """In which modes a device may be shared, as in `mps or mig`; empty for any."""
    if shape.devices.modes:
        return " or ".join(shape.devices.modes)
    return "mig" if any(ask.profile for ask in shape.asks) else ""


def devices(shape: Shape) -> list[str]:
    """Which devices will do, as in `of H100`, `mps`, `only cards 0 and 2`."""
    wanted, of = shape.devices, types(shape)
    said = [f"of {of}"] if of else []
    said += [" or ".join(wanted.modes)] if wanted.modes else []
    return said + _cards(wanted)


def cards(shape: Shape) -> str:
    """That certain cards alone will do, as in `only cards 0 and 2 will do`; empty where any will.

    Of all nodes have cards, and yet few such: what a node has free tells nothing without it.
    """
    said = [f"{each} will do" for each in _cards(shape.devices)]
    return ", and ".join(said)


def _cards(wanted: DeviceConstraints) -> list[str]:
    said = [f"only {indexes(wanted)}"] if wanted.indexes else []
    said += [f"only {_all(wanted.use_ids)}"] if wanted.use_ids else []
    return said + ([f"all but {_all(wanted.nouse_ids)}"] if wanted.nouse_ids else [])


def indexes(wanted: DeviceConstraints) -> str:
    """The cards of a node by their numbers, as in `cards 0 and 2`."""
    return ("card " if len(wanted.indexes) == 1 else "cards ") + _all(map(str, wanted.indexes))


def _all(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - CARDS_NAMED
    if more > 0:
        return f"{', '.join(known[:CARDS_NAMED])} and {more:,} more"
    return " and ".join(filter(None, (", ".join(known[:-1]), *known[-1:])))
