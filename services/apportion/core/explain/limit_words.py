"""Limits in words: queues, quotas and claims on volumes, which no node is at fault for.

Amounts are said in the unit of the resource, as Kubernetes names it. Invariant: what keeps a pod
from every node is said once, whatever nodes are short of beside it.
"""

from typing import Final

from apportion.core.placement.feasibility.causes import of_kind
from apportion.core.placement.feasibility.descriptors import Kind
from apportion_schemas import PodRefused, QueueShortage, QuotaShortage, RefusalCode, VolumeShortage

_C = RefusalCode

LIMIT_CODES: Final = of_kind(Kind.LIMIT)
"""Refusals that a pod's queue or namespace is the cause of, and no node."""
CLAIM_CODES: Final = (_C.VOLUME_CLAIM_NOT_READY, _C.VOLUME_CLAIM_IN_USE)
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


def of_what(refused: PodRefused) -> str:
    """Which limit it is, by its kind and name; empty where there is none."""
    if refused.volume is not None:
        return f"claim {refused.volume.claim}"
    if refused.queue is not None:
        return f"queue {refused.queue.queue}"
    return f"quota {refused.quota.quota}" if refused.quota is not None else ""


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
