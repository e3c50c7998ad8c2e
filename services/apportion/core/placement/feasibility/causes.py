"""The descriptors of all refusal codes: those of filters, and those that no filter finds.

Invariant: every `RefusalCode` is in `CAUSES` once; unknown codes of newer builds are accepted."""

from typing import Any, Final

from apportion.core.placement.feasibility import amounts, devices, nodes
from apportion.core.placement.feasibility.descriptors import (
    CLAIMED,
    CLAIMED_THERE,
    COMPLETED,
    DEVICE,
    FEWER,
    HELD_BY_NAMESPACE,
    HELD_BY_QUEUE,
    KEPT,
    LARGER,
    MOUNTED,
    NEAR,
    PARTS,
    Cause,
    Kind,
    Unit,
)
from apportion_schemas import RefusalCode

_C = RefusalCode

OF_VOLUMES: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.VOLUME_NODE_MISMATCH,
          "a volume of the pod is not on the node, and cannot be made there",
          "another node where the volume is", CLAIMED_THERE),
    Cause(_C.VOLUMES_EXHAUSTED, "node can have no more volumes of this CSI driver attached",
          "pods with volumes end on the node", MOUNTED, unit=Unit.VOLUMES),
)  # fmt: skip
"""Where a pod's volumes are, and how many a node can attach; checked by `volumes`."""

OF_NEIGHBOURS: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.POD_AFFINITY_MISMATCH, "no pod that this one must be near is there",
          "such a pod is placed there, or another pod affinity", NEAR),
    Cause(_C.POD_ANTI_AFFINITY,
          "a pod is there that keeps away from this one, or this one from it",
          "that pod ends, or a node in another domain", NEAR),
    Cause(_C.TOPOLOGY_SPREAD_EXCEEDED,
          "more pods like this one are there than its topology spread allows",
          "room in the domains that have fewer, or a greater maxSkew", NEAR),
)  # fmt: skip
"""Pod affinity, anti-affinity and spread; checked by `relations` for all nodes at once."""

TOO_FEW: Final[Cause[Any]] = Cause(
    _C.DEVICES_TOO_FEW, "node has fewer fitting devices than asked for",
    "a node with more such devices, or fewer devices asked for", DEVICE, unit=Unit.DEVICES,
)  # fmt: skip

OF_PARTS: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.MIG_NO_PROFILE, "no MIG profile of the device holds the ask",
          "a larger card, or a smaller ask", PARTS, kind=Kind.LASTING, unit=Unit.MIB),
    Cause(_C.TEMPLATE_NONE_FITS, "no vNPU template of the device holds the ask",
          "a larger device, or a smaller ask", PARTS, kind=Kind.LASTING, unit=Unit.MIB),
)  # fmt: skip
"""No part of the device is large enough; found by `demand`."""

TOGETHER: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.NUMA_MISMATCH, "no NUMA node of the host has enough fitting devices",
          "devices on one NUMA node are freed, or no NUMA binding", DEVICE, unit=Unit.DEVICES,
          fix_when_empty="a node with more such devices on one NUMA node, or no NUMA binding"),
    Cause(_C.MODULES_IN_USE, "enough devices fit, but too few modules of which all devices do",
          "the other devices of a module are freed", DEVICE, unit=Unit.DEVICES,
          fix_when_empty=LARGER),
    Cause(_C.CONTAINERS_COLLIDE, "each container of the pod fits alone, but not all together",
          "more devices of one node are freed, or smaller asks", DEVICE, unit=Unit.DEVICES,
          fix_when_empty="a node with more such devices, or smaller asks"),
)  # fmt: skip
"""Each container fits alone, but not all together; found by `assign`."""

NOMINATED: Final[Cause[Any]] = Cause(
    _C.NODE_NOMINATED,
    "the node is kept for a pod that others leave for, of the same priority or more",
    "that pod has its place, or a higher priority", KEPT, fix_when_empty=LARGER,
)  # fmt: skip

OF_NO_NODE: Final[tuple[Cause[Any], ...]] = (
    Cause(_C.VOLUME_CLAIM_NOT_READY,
          "a PersistentVolumeClaim of the pod is missing, not bound, lost or being deleted",
          "kubectl describe pvc says what it waits for", CLAIMED),
    Cause(_C.VOLUME_CLAIM_IN_USE,
          "another pod has a PersistentVolumeClaim that only one may have (ReadWriteOncePod)",
          "that pod ends", MOUNTED),
    Cause(_C.GANG_INCOMPLETE, "the gang waits for more of its pods",
          "the rest of the gang is submitted", COMPLETED, unit=Unit.PODS),
    Cause(_C.GANG_TOO_LARGE, "the gang must start more pods at once than one decision holds",
          "a smaller minAvailable (minMember)", FEWER, unit=Unit.PODS),
    Cause(_C.QUEUE_CLOSED, "the pod's queue is closed", "the queue is opened, or another queue",
          HELD_BY_QUEUE, kind=Kind.LIMIT),
    Cause(_C.QUEUE_CAPABILITY_EXCEEDED, "the pod's queue may not hold so much",
          "pods of the queue end, or a greater capability of the queue", HELD_BY_QUEUE,
          kind=Kind.LIMIT, fix_when_empty="a greater capability of the queue"),
    Cause(_C.QUEUE_CARDS_EXCEEDED, "the pod's queue may not hold so many cards of the model",
          "pods of the queue end, or a greater volcano.sh/card.quota of the queue", HELD_BY_QUEUE,
          kind=Kind.LIMIT, fix_when_empty="a greater volcano.sh/card.quota of the queue"),
    Cause(_C.QUOTA_EXCEEDED, "a ResourceQuota of the pod's namespace does not allow so much",
          "pods of the namespace end, or more in spec.hard of the ResourceQuota",
          HELD_BY_NAMESPACE, kind=Kind.LIMIT,
          fix_when_empty="more in spec.hard of the ResourceQuota"),
)  # fmt: skip
"""What keeps a pod from every node: its volume claims, gang, queue or namespace."""

# in the order in which they are tried; causes that concern no node come last
CAUSES: Final[dict[RefusalCode, Cause[Any]]] = {
    cause.code: cause
    for cause in (
        *nodes.FACTS, OF_VOLUMES[0], *nodes.ROOM, *nodes.NEEDS, OF_VOLUMES[1], *OF_NEIGHBOURS,
        *devices.RULES, TOO_FEW, *OF_PARTS, *amounts.OF_DEVICES, *TOGETHER, NOMINATED, *OF_NO_NODE,
    )
}  # fmt: skip


def cause_of(code: RefusalCode) -> Cause[Any]:
    """Return the descriptor of a code; an unknown code of a newer build describes itself."""
    known = CAUSES.get(code)
    return known or Cause(code, f"{code.value}, which this build does not know", "", ())


def of_kind(kind: Kind) -> frozenset[RefusalCode]:
    """Return the codes of one kind."""
    return frozenset(code for code, cause in CAUSES.items() if cause.kind is kind)
