"""Which event can make which refusal pass: the one table of who is asked again, and when.

Like the queueing hints of kube-scheduler: every reason to wait names the events that can end it,
and what must have come of the event. An event that stands in no row helps nobody. The engine asks
by the event: `asked` joins all rows that name it, for the reasons that a shape queue was given may
have become others since.

Invariant: whatever lets a pod have a place that had none is an event of a row of that pod's
reasons; a property test plays histories against the table.
"""

from typing import Final, NamedTuple

from apportion.core.ledger.change import Change
from apportion.core.placement.index.packed import Int64
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    BudgetGone,
    BudgetObserved,
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    DifferenceFound,
    FormatEnabled,
    LedgerRebuilt,
    NamespaceGone,
    NamespaceObserved,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodResized,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    RefusalCode,
    ReportRefused,
    ResizeAsked,
    ResizeRefused,
    RevisionSetAside,
    ShareBreached,
    SharesAllocated,
    UsageRecorded,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.quantities import Payload

SOME: Final[Int64] = 1
"""Ask those for which there is room on a node that changed, and those whose needs nobody knows."""
REORDERED: Final[Int64] = 2
"""Ask those as well of which several containers may want the same device: in another order of the
devices they may not.
"""
GANG: Final[Int64] = 4
"""Ask the gang that the event is about."""

TAKEN: Final[Int64] = 1
"""The fold took the event."""
REFUSED: Final[Int64] = 2
"""The fold did not: what a decision counted on did not come about."""
MOVED: Final[Int64] = 4
"""Another number of pods that somebody looks for is on a node, or other pods are looked for."""
FREED: Final[Int64] = 8
"""A queue or a namespace may hold more than before, or a node is kept for nobody any more."""


class Hint(NamedTuple):
    """An event that can help: whom it lets be asked, and (any of) what must have come of it."""

    event: type[Payload]
    asks: int
    when: int = TAKEN


LIMITS_SET: Final = frozenset((QueueObserved, QuotaObserved, QuotaGone, ConfigurationChanged))
"""Events that set limits, or say what those that there are mean."""

_LEFT: Final = (
    Hint(PodGone, SOME),
    Hint(PlacementVoided, SOME),
    Hint(PodPlaced, SOME, REFUSED),
    Hint(PodChanged, SOME),  # it may take less of its host
    Hint(PodResized, SOME),
)
_TOLD: Final = (Hint(NodeObserved, SOME), Hint(NodeReported, SOME))
_CUT: Final = (Hint(ConfigurationChanged, REORDERED),)
"""How cards may be cut; the document may name a policy as well."""
_ORDERED: Final = (Hint(PolicyChanged, REORDERED), Hint(PricesLearnt, REORDERED), *_CUT)
"""Another order of devices may let containers in that collided, or a gang."""
_HOST: Final = (*_LEFT, *_TOLD)
_OFFERED: Final = (
    *_TOLD,
    Hint(DeviceHealthChanged, SOME),
    Hint(DeviceUncordoned, SOME),
    Hint(DeviceCordonLifted, SOME),
    *_CUT,
)
_DEVICE: Final = (*_LEFT, *_OFFERED, *_ORDERED)
"""A policy may want devices for one pod alone, so that it decides of amounts as well."""
_NEAR: Final = (
    Hint(PodPlaced, SOME, MOVED | REFUSED),
    Hint(PodAdopted, SOME, MOVED),
    Hint(PlacementVoided, SOME, MOVED),
    Hint(PodGone, SOME, MOVED),
    Hint(PodChanged, SOME, MOVED),
    Hint(NamespaceObserved, SOME, MOVED),  # terms may mean other namespaces now
    Hint(NamespaceGone, SOME, MOVED),
    Hint(NodeGone, SOME),  # it is no domain any more, or takes the label of its domain with it
    *_TOLD,
)
_HELD: Final = (
    Hint(PodGone, SOME, FREED),
    Hint(PodChanged, SOME, FREED),
    Hint(PodResized, SOME, FREED),
    Hint(PlacementVoided, SOME, FREED),
    Hint(PodPlaced, SOME, REFUSED),
    Hint(NodeGone, SOME, FREED),
    *_TOLD,
    *_ORDERED,
)
_HELD_BY_QUEUE: Final = (
    *_HELD,
    Hint(QueueObserved, SOME),
    Hint(PodGroupObserved, SOME, FREED),  # its pods may be of another queue now
)
_HELD_BY_NAMESPACE: Final = (*_HELD, Hint(QuotaObserved, SOME), Hint(QuotaGone, SOME))
_KEPT: Final = (
    *_LEFT,
    *_TOLD,
    Hint(PodPlaced, SOME, FREED | REFUSED),  # the one for which the node was kept has a place
    Hint(PodRefused, SOME, FREED),  # or none although nobody has to leave for it any more
)
_CLAIMED: Final = (Hint(VolumeClaimObserved, SOME), Hint(VolumeClaimGone, SOME))
_MOUNTED: Final = (*_CLAIMED, *_HOST, Hint(NodeGone, SOME))
"""Whoever mounted the claim, or had its place, may be gone with its node."""
_FEWER: Final = (
    Hint(PodGroupObserved, GANG),
    Hint(PodPlaced, GANG),
    Hint(PodAdopted, GANG),
    Hint(PodChanged, GANG),
)
_C = RefusalCode

BY_REASON: Final[dict[RefusalCode, tuple[Hint, ...]]] = {
    _C.NODE_GONE: _TOLD,
    _C.NODE_NOT_READY: _TOLD,
    _C.AGENT_SILENT: (*_TOLD, Hint(NodeHeard, SOME)),
    _C.DEVICE_PLUGIN_FOREIGN: _TOLD,
    _C.NODE_CORDONED: (Hint(NodeUncordoned, SOME), Hint(NodeCordonLifted, SOME)),
    _C.NODE_UNSCHEDULABLE: _TOLD,
    _C.TAINT_NOT_TOLERATED: _TOLD,
    _C.NODE_LABELS_MISMATCH: _TOLD,
    _C.CPU_INSUFFICIENT: _HOST,
    _C.HOST_MEMORY_INSUFFICIENT: _HOST,
    _C.PODS_EXHAUSTED: _HOST,
    _C.EXTENDED_RESOURCE_INSUFFICIENT: _HOST,
    _C.HOST_PORT_TAKEN: _HOST,
    _C.DISK_IN_USE: _HOST,
    _C.VOLUME_CLAIM_NOT_READY: _CLAIMED,
    _C.VOLUME_CLAIM_IN_USE: _MOUNTED,
    _C.VOLUME_NODE_MISMATCH: (*_CLAIMED, *_TOLD),
    _C.VOLUMES_EXHAUSTED: _MOUNTED,
    _C.POD_AFFINITY_MISMATCH: _NEAR,
    _C.POD_ANTI_AFFINITY: _NEAR,
    _C.TOPOLOGY_SPREAD_EXCEEDED: _NEAR,
    _C.NO_SUCH_DEVICE: _TOLD,
    _C.MODE_MISMATCH: _TOLD,
    _C.TYPE_MISMATCH: _TOLD,
    _C.UUID_MISMATCH: _TOLD,
    _C.INDEX_MISMATCH: _TOLD,
    _C.DEVICE_UNHEALTHY: _OFFERED,
    _C.DEVICE_CORDONED: _OFFERED,
    _C.DEVICE_IN_USE: _DEVICE,
    _C.SLOTS_EXHAUSTED: _DEVICE,
    _C.CORES_INSUFFICIENT: _DEVICE,
    _C.MEMORY_INSUFFICIENT: _DEVICE,
    _C.MIG_NO_PROFILE: (*_TOLD, *_CUT),
    _C.MIG_SLICES_OCCUPIED: _DEVICE,
    _C.TEMPLATE_CPU_INSUFFICIENT: _DEVICE,
    _C.TEMPLATE_NONE_FITS: (*_TOLD, *_CUT),
    _C.NUMA_MISMATCH: _DEVICE,
    _C.MODULES_IN_USE: _DEVICE,
    _C.DEVICES_TOO_FEW: _DEVICE,
    _C.CONTAINERS_COLLIDE: _DEVICE,
    _C.NODE_NOMINATED: _KEPT,
    _C.GANG_INCOMPLETE: (*_FEWER, Hint(PodSubmitted, GANG), Hint(PlacementVoided, GANG)),
    _C.GANG_TOO_LARGE: _FEWER,
    _C.QUEUE_CLOSED: _HELD_BY_QUEUE,
    _C.QUEUE_CAPABILITY_EXCEEDED: _HELD_BY_QUEUE,
    _C.QUEUE_CARDS_EXCEEDED: _HELD_BY_QUEUE,
    _C.QUOTA_EXCEEDED: _HELD_BY_NAMESPACE,
}
"""A refusal, and what can make it pass; of several reasons each event of any row may."""
OF_GANGS: Final = (*BY_REASON[_C.GANG_INCOMPLETE], *_ORDERED)
"""Whatever a gang was refused for: it may lack fewer pods, have others, or take other places."""
UNDECLARED: Final = (Hint(PodGroupObserved, GANG),)
"""What helps a gang of which nobody knows what it needs; it is refused by silence."""
HELPS_NOBODY: Final = frozenset(
    (
        AllocationFailed,  # what failed still holds its shares, until its placement is voided
        BindFailed,
        BudgetGone,
        BudgetObserved,  # budgets choose whom to spare, and forbid nothing
        DeviceCordoned,
        DifferenceFound,
        LedgerRebuilt,
        FormatEnabled,
        RevisionSetAside,
        NodeCordoned,
        NodeSilent,
        PodBound,
        PodEvicted,  # it holds its place until it is gone
        ResizeAsked,
        ResizeRefused,
        PodGroupGone,  # its pods hold together as they did
        PodRejected,
        ReportRefused,
        ShareBreached,
        SharesAllocated,
        UsageRecorded,
    )
)
"""Events that make no refusal pass."""


def _by_event() -> dict[type, tuple[int, ...]]:
    """For each event whom it lets be asked, all rows that name it joined, by what came of it."""
    found: dict[type, list[int]] = {}
    for hint in (hint for row in (*BY_REASON.values(), OF_GANGS, UNDECLARED) for hint in row):
        whom = found.setdefault(hint.event, [0] * (2 * FREED))
        for happened in range(len(whom)):
            whom[happened] |= hint.asks if hint.when & happened else 0
    return {event: tuple(whom) for event, whom in found.items()}


BY_EVENT: Final = _by_event()
"""The same table the other way round: whom an event lets be asked, at the place of what came of it.
"""


def asked(change: Change, moved: bool, freed: bool) -> Int64:  # noqa: FBT001 - of a hot path
    """Whom the event lets be asked again: `SOME`, `REORDERED` and `GANG`, or 0 for nobody.

    `moved` and `freed` say what came of it: see `MOVED` and `FREED`.
    """
    whom = BY_EVENT.get(type(change.data))
    if whom is None:
        return 0
    happened: Int64 = REFUSED if change.refused else TAKEN
    if moved:
        happened = happened | MOVED
    if freed:
        happened = happened | FREED
    found: Int64 = whom[happened]
    return found
