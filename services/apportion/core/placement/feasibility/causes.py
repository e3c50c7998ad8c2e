"""The descriptors of all refusal codes: those of filters, and those of what is no filter.

Invariant: every `RefusalCode` is in `CAUSES` once, and a code of a newer build stands for itself.
"""

from typing import Final

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
    MOUNTED,
    NEAR,
    PARTS,
    Cause,
    Kind,
    Unit,
)
from apportion_schemas import RefusalCode

_C = RefusalCode
_LARGER: Final = "a larger device or node, or a smaller ask"

OF_VOLUMES: Final = (
    Cause(
        _C.VOLUME_NODE_MISMATCH,
        "a volume of the pod is not on the node, and cannot be made there",
        fix="another node where the volume is",
        hints=CLAIMED_THERE,
    ),
    Cause(
        _C.VOLUMES_EXHAUSTED,
        "node can have no more volumes of this CSI driver attached",
        fix="pods with volumes end on the node",
        hints=MOUNTED,
        unit=Unit.VOLUMES,
    ),
)
"""Where the volumes of a pod are, and how many a node can have, which `volumes` answers."""

OF_NEIGHBOURS: Final = (
    Cause(
        _C.POD_AFFINITY_MISMATCH,
        "no pod that this one must be near is there",
        fix="such a pod is placed there, or another pod affinity",
        hints=NEAR,
    ),
    Cause(
        _C.POD_ANTI_AFFINITY,
        "a pod is there that keeps away from this one, or this one from it",
        fix="that pod ends, or a node in another domain",
        hints=NEAR,
    ),
    Cause(
        _C.TOPOLOGY_SPREAD_EXCEEDED,
        "more pods like this one are there than its topology spread allows",
        fix="room in the domains that have fewer, or a greater maxSkew",
        hints=NEAR,
    ),
)
"""Where a pod may be in relation to others, which `relations` answers for all nodes at once."""

TOO_FEW: Final = Cause(
    _C.DEVICES_TOO_FEW,
    "node has fewer fitting devices than asked for",
    fix="a node with more such devices, or fewer devices asked for",
    hints=DEVICE,
    unit=Unit.DEVICES,
)

OF_PARTS: Final = (
    Cause(
        _C.MIG_NO_PROFILE,
        "no MIG profile of the device holds the ask",
        fix="a larger card, or a smaller ask",
        hints=PARTS,
        unit=Unit.MIB,
        kind=Kind.LASTING,
    ),
    Cause(
        _C.TEMPLATE_NONE_FITS,
        "no vNPU template of the device holds the ask",
        fix="a larger device, or a smaller ask",
        hints=PARTS,
        unit=Unit.MIB,
        kind=Kind.LASTING,
    ),
)
"""The device is cut into no part that is large enough, which `demand` answers."""

TOGETHER: Final = (
    Cause(
        _C.NUMA_MISMATCH,
        "no NUMA node of the host has enough fitting devices",
        fix="devices on one NUMA node are freed, or no NUMA binding",
        hints=DEVICE,
        unit=Unit.DEVICES,
        fix_when_empty="a node with more such devices on one NUMA node, or no NUMA binding",
    ),
    Cause(
        _C.MODULES_IN_USE,
        "enough devices fit, but too few modules of which all devices do",
        fix="the other devices of a module are freed",
        hints=DEVICE,
        unit=Unit.DEVICES,
        fix_when_empty=_LARGER,
    ),
    Cause(
        _C.CONTAINERS_COLLIDE,
        "each container of the pod fits alone, but not all together",
        fix="more devices of one node are freed, or smaller asks",
        hints=DEVICE,
        unit=Unit.DEVICES,
        fix_when_empty="a node with more such devices, or smaller asks",
    ),
)
"""Each container fits alone, and not all of them together, which `assign` finds."""

NOMINATED: Final = Cause(
    _C.NODE_NOMINATED,
    "the node is kept for a pod that others leave for, of the same priority or more",
    fix="that pod has its place, or a higher priority",
    hints=KEPT,
    fix_when_empty=_LARGER,
)

OF_NO_NODE: Final = (
    Cause(
        _C.VOLUME_CLAIM_NOT_READY,
        "a PersistentVolumeClaim of the pod is missing, not bound, lost or being deleted",
        fix="kubectl describe pvc says what it waits for",
        hints=CLAIMED,
    ),
    Cause(
        _C.VOLUME_CLAIM_IN_USE,
        "another pod has a PersistentVolumeClaim that only one may have (ReadWriteOncePod)",
        fix="that pod ends",
        hints=MOUNTED,
    ),
    Cause(
        _C.GANG_INCOMPLETE,
        "the gang waits for more of its pods",
        fix="the rest of the gang is submitted",
        hints=COMPLETED,
        unit=Unit.PODS,
    ),
    Cause(
        _C.GANG_TOO_LARGE,
        "the gang must start more pods at once than one decision holds",
        fix="a smaller minAvailable (minMember)",
        hints=FEWER,
        unit=Unit.PODS,
    ),
    Cause(
        _C.QUEUE_CLOSED,
        "the pod's queue is closed",
        fix="the queue is opened, or another queue",
        hints=HELD_BY_QUEUE,
        kind=Kind.LIMIT,
    ),
    Cause(
        _C.QUEUE_CAPABILITY_EXCEEDED,
        "the pod's queue may not hold so much",
        fix="pods of the queue end, or a greater capability of the queue",
        hints=HELD_BY_QUEUE,
        fix_when_empty="a greater capability of the queue",
        kind=Kind.LIMIT,
    ),
    Cause(
        _C.QUEUE_CARDS_EXCEEDED,
        "the pod's queue may not hold so many cards of the model",
        fix="pods of the queue end, or a greater volcano.sh/card.quota of the queue",
        hints=HELD_BY_QUEUE,
        fix_when_empty="a greater volcano.sh/card.quota of the queue",
        kind=Kind.LIMIT,
    ),
    Cause(
        _C.QUOTA_EXCEEDED,
        "a ResourceQuota of the pod's namespace does not allow so much",
        fix="pods of the namespace end, or more in spec.hard of the ResourceQuota",
        hints=HELD_BY_NAMESPACE,
        fix_when_empty="more in spec.hard of the ResourceQuota",
        kind=Kind.LIMIT,
    ),
)
"""What keeps a pod from every node: its claims, its gang, its queue or its namespace."""

CAUSES: Final[dict[RefusalCode, Cause]] = {
    cause.code: cause
    for cause in (
        *(each.cause for each in nodes.FACTS),
        OF_VOLUMES[0],
        *(each.cause for each in (*nodes.ROOM, *nodes.NEEDS)),
        OF_VOLUMES[1],
        *OF_NEIGHBOURS,
        *(each.cause for each in devices.RULES),
        TOO_FEW,
        *OF_PARTS,
        *(each.cause for each in amounts.OF_DEVICES),
        *TOGETHER,
        NOMINATED,
        *OF_NO_NODE,
    )
}
"""In the order in which they are tried; what keeps a pod from every node comes last."""


def cause_of(code: RefusalCode) -> Cause:
    """Its descriptor; a code of a newer build than this stands for itself."""
    known = CAUSES.get(code)
    return known or Cause(code, f"{code.value}, which this build does not know", "", ())


def of_kind(kind: Kind) -> frozenset[RefusalCode]:
    """The codes of one sort."""
    return frozenset(code for code, cause in CAUSES.items() if cause.kind is kind)
