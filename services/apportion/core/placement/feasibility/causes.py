"""Describe every refusal code, whether a filter returns it or another part of the scheduler.

Invariant: each `RefusalCode` is in `CAUSES` once. A code of a newer build is shown as its name."""

from typing import Any, Final, NamedTuple

from msgspec import structs

from apportion.core.placement.feasibility import amounts, devices, nodes
from apportion.core.placement.feasibility.descriptors import (
    BEHIND,
    CLAIMED,
    CLAIMED_THERE,
    COMPLETED,
    DEVICE,
    HELD_BY_NAMESPACE,
    HELD_BY_QUEUE,
    KEPT,
    LARGER,
    MOUNTED,
    NEAR,
    OF_DOMAIN,
    PARTS,
    RESERVED,
    Cause,
    Kind,
    Unit,
)
from apportion_schemas import PodRefused, RefusalCode, Shape

_C = RefusalCode

OF_VOLUMES: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.VOLUME_NODE_MISMATCH,
          "a volume of the pod is not available on the node",
          "use a node where the volume is available", CLAIMED_THERE),
    Cause(_C.VOLUMES_EXHAUSTED,
          "node has reached its volume limit for this CSI driver, or lacks the driver",
          "wait for pods with volumes on the node to end, or install the driver", MOUNTED,
          unit=Unit.VOLUMES),
)  # fmt: skip
"""Where a pod's volumes are, and how many a node can attach; checked by `volumes`."""

OF_NEIGHBOURS: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.POD_AFFINITY_MISMATCH, "required pod affinity is not met",
          "place a matching pod there first, or change the pod affinity", NEAR),
    Cause(_C.POD_ANTI_AFFINITY,
          "pod anti-affinity conflicts with a pod there",
          "wait for that pod to end, or use a node in another topology domain", NEAR),
    Cause(_C.TOPOLOGY_SPREAD_EXCEEDED,
          "the pod would exceed the maxSkew of its topology spread",
          "free capacity in domains with fewer pods, or raise maxSkew", NEAR),
    # checked by `gang_turn`, because it depends on the gang's other pods
    Cause(_C.GANG_DOMAIN_TOO_SMALL,
          "node is in a topology domain without room for the whole gang",
          "free devices in one domain, or require a larger topology level", OF_DOMAIN),
)  # fmt: skip
"""Pod affinity, anti-affinity and spread; checked by `relations` for all nodes at once."""

TOO_FEW: Final[Cause[Any]] = Cause(
    _C.DEVICES_TOO_FEW, "node has fewer matching devices than requested",
    "use a node with more such devices, or request fewer", DEVICE, unit=Unit.DEVICES,
)  # fmt: skip

OF_PARTS: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.MIG_NO_PROFILE, "no MIG profile of the device is large enough",
          "use a larger GPU, or request less", PARTS, kind=Kind.LASTING, unit=Unit.MIB),
    Cause(_C.TEMPLATE_NONE_FITS, "no vNPU template of the device is large enough",
          "use a larger device, or request less", PARTS, kind=Kind.LASTING, unit=Unit.MIB),
)  # fmt: skip
"""No part of the device is large enough; found by `demand`."""

TOGETHER: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.NUMA_MISMATCH, "no NUMA node of the host has enough matching devices",
          "wait until devices on one NUMA node are free, or remove the NUMA binding", DEVICE,
          unit=Unit.DEVICES,
          fix_when_empty="use a node with more such devices per NUMA node, or remove the "
          "NUMA binding"),
    Cause(_C.MODULES_IN_USE, "enough devices are free, but too few of them form complete modules",
          "wait for the other devices of a module to be freed", DEVICE, unit=Unit.DEVICES,
          fix_when_empty=LARGER),
    Cause(_C.CONTAINERS_COLLIDE,
          "each container of the pod fits alone, but not all of them together",
          "free more devices on one node, or request less", DEVICE, unit=Unit.DEVICES,
          fix_when_empty="use a node with more such devices, or request less"),
)  # fmt: skip
"""Each container fits alone, but not all together; found by `assign`."""

NOMINATED: Final[Cause[Any]] = Cause(
    _C.NODE_NOMINATED,
    "node is reserved for a pod of the same or higher priority, for which others are evicted",
    "wait until that pod is placed, or raise the priority", KEPT, fix_when_empty=LARGER,
)  # fmt: skip

RESERVED_FOR: Final[Cause[Any]] = Cause(
    _C.NODE_RESERVED,
    "node is reserved for a gang or pod that has waited for long",
    "wait until that gang is placed, or set activeDeadlineSeconds so that the pod ends before it "
    "starts", RESERVED, fix_when_empty=LARGER,
)  # fmt: skip

OF_NO_NODE: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.VOLUME_CLAIM_NOT_READY,
          "a PersistentVolumeClaim of the pod is missing, not bound, lost or being deleted",
          "see `kubectl describe pvc`", CLAIMED),
    Cause(_C.VOLUME_CLAIM_IN_USE,
          "another pod uses a PersistentVolumeClaim that only one pod may use (ReadWriteOncePod)",
          "wait for that pod to end", MOUNTED),
    Cause(_C.GANG_INCOMPLETE, "the gang does not have enough pods yet",
          "submit the rest of the gang", COMPLETED, unit=Unit.PODS),
    Cause(_C.QUEUE_CLOSED, "the pod's queue is closed", "open the queue, or use another one",
          HELD_BY_QUEUE, kind=Kind.LIMIT),
    Cause(_C.QUEUE_CAPABILITY_EXCEEDED, "the pod would exceed the capability of its queue",
          "wait for pods of the queue to end, or raise its capability", HELD_BY_QUEUE,
          kind=Kind.LIMIT, fix_when_empty="raise the capability of the queue"),
    Cause(_C.QUEUE_CARDS_EXCEEDED, "the pod would exceed its queue's limit for this device model",
          "wait for pods of the queue to end, or raise its volcano.sh/card.quota", HELD_BY_QUEUE,
          kind=Kind.LIMIT, fix_when_empty="raise volcano.sh/card.quota of the queue"),
    Cause(_C.QUEUE_RESERVED, "the rest of the resource is guaranteed to other queues",
          "wait for pods of the queue to end, or lower the guarantee of other queues",
          HELD_BY_QUEUE, kind=Kind.LIMIT, fix_when_empty="lower the guarantee of other queues"),
    Cause(_C.QUEUE_FIRST_WAITS, "its queue has the strategy fifo, and an earlier pod is pending",
          "see why the earlier pod is pending, or set dequeueStrategy: traverse", BEHIND,
          kind=Kind.LIMIT),
    Cause(_C.QUOTA_EXCEEDED, "the pod would exceed a ResourceQuota of its namespace",
          "wait for pods of the namespace to end, or raise spec.hard of the ResourceQuota",
          HELD_BY_NAMESPACE, kind=Kind.LIMIT,
          fix_when_empty="raise spec.hard of the ResourceQuota"),
)  # fmt: skip
"""What keeps a pod from every node: its volume claims, gang, queue or namespace."""
NO_NODE_CODES: Final = frozenset(cause.code for cause in OF_NO_NODE)

# in the order in which they are tried; causes that concern no node come last
CAUSES: Final[dict[RefusalCode, Cause[Any]]] = {
    cause.code: cause
    for cause in (
        *nodes.FACTS, OF_VOLUMES[0], *nodes.ROOM, *nodes.NEEDS, OF_VOLUMES[1], *OF_NEIGHBOURS,
        *devices.RULES, TOO_FEW, *OF_PARTS, *amounts.OF_DEVICES, *TOGETHER, NOMINATED, RESERVED_FOR,
        *OF_NO_NODE,
    )
}  # fmt: skip


def cause_of(code: RefusalCode) -> Cause[Any]:
    """Return the description of a code; an unknown code is described by its own name."""
    known = CAUSES.get(code)
    return known or Cause(code, f"{code.value} (unknown to this build)", "", ())


def of_kind(kind: Kind) -> frozenset[RefusalCode]:
    """Return the refusal codes of one kind, such as `Kind.LIMIT`."""
    return frozenset(code for code, cause in CAUSES.items() if cause.kind is kind)


LIMIT_CODES: Final = of_kind(Kind.LIMIT)  # caused by a queue or namespace, not by a node
FREED: Final = of_kind(Kind.FREED)  # causes that end when shares are released
LASTING: Final = of_kind(Kind.LASTING)  # properties of nodes and devices


def ranked(refused: PodRefused) -> list[tuple[RefusalCode, int]]:
    """Return the causes of a refusal, the most relevant first: limits before all node causes."""
    near = refused.nearest[0].code if refused.nearest else None
    return sorted(
        frequent(refused),
        key=lambda row: (row[0] not in LIMIT_CODES, row[0] in LASTING, row[0] != near),
    )


def of_no_node(refused: PodRefused) -> RefusalCode | None:
    """Return the main cause of a refusal if it keeps the pod from every node, else None."""
    code = ranked(refused)[0][0] if refused.reasons else None
    return code if code in NO_NODE_CODES else None


def frequent(refused: PodRefused) -> list[tuple[RefusalCode, int]]:
    """Return the causes of a refusal: limits, then causes by node count, then lasting ones."""
    order = list(RefusalCode)
    return sorted(
        refused.reasons.items(),
        key=lambda row: (
            row[0] not in LIMIT_CODES,
            row[0] in LASTING,
            -row[1],
            order.index(row[0]),
        ),
    )


def is_unsuitable(refused: PodRefused) -> bool:
    """Return True if every node is unsuitable in itself, so that waiting does not help.

    The refusal of a gang does not count nodes that have room for some of its pods."""
    counts = refused.reasons
    return counts.keys() <= LASTING and 0 < refused.nodes <= sum(counts.values())


def without_gone(refused: PodRefused) -> PodRefused:
    """Return the refusal without counting nodes that left the cluster, unless all have left."""
    left = refused.reasons.get(_C.NODE_GONE, 0)
    if left in (0, refused.nodes):
        return refused
    reasons = {code: count for code, count in refused.reasons.items() if code != _C.NODE_GONE}
    return structs.replace(refused, nodes=refused.nodes - left, reasons=reasons)


class BeyondLimit(NamedTuple):
    """A queue or quota limit that a pod or its gang exceeds even when no other pod runs."""

    queue: str
    quota: str
    resource: str
    most: int
    needed: int
    together: bool  # too small for the whole gang


class TooFewPlaces(NamedTuple):
    """A gang that needs more room than the empty cluster has."""

    needed: int
    places: int
    none: tuple[str, ...]  # pods like these fit on no node


class Explained(NamedTuple):
    """A refusal with the nearest nodes that could run the pod."""

    refused: PodRefused
    never: bool  # no node could ever run the pod
    limit: BeyondLimit | TooFewPlaces | PodRefused | None = None  # exceeded even alone
    own: int = 0  # nodes with room only for the gang's other pods
    shape: Shape | None = None  # None if the gang has several

    @property
    def of_limits(self) -> bool:
        """Return True if a queue, quota, volume or the pod's gang blocks the pod on every node."""
        refused, gang = self.refused, self.refused.gang
        short = gang is not None and gang.present < gang.needed
        return bool(refused.queue or refused.quota or refused.volume or short)
