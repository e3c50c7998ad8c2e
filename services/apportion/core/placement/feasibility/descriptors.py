"""The descriptor of a refusal code, and of its filter: all that the product knows of it, once.

Command line, API, console, documentation and the scheduler read these: what is wrong in words,
what would end it, what its amounts count, and which events may end it, as with the queueing hints
of kube-scheduler. `causes` lists the descriptors of all codes.

Invariant: only this package says anything about a code by its name, but for the code that finds it.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from apportion_schemas import (
    ConfigurationChanged,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    NamespaceGone,
    NamespaceObserved,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    RefusalCode,
    Shape,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.quantities import Payload

SOME: Final = 1
"""Ask those for which there is room on a node that changed, and those whose needs are not known."""
REORDERED: Final = 2
"""Ask those as well of which several containers may want the same device: in another order of the
devices they may not.
"""
GANG: Final = 4
"""Ask the gang that the event is about."""

TAKEN: Final = 1
"""The fold took the event."""
REFUSED: Final = 2
"""The fold did not: what a decision counted on did not come about."""
MOVED: Final = 4
"""Another number of pods that somebody looks for is on a node, or other pods are looked for."""
FREED: Final = 8
"""A queue or a namespace may hold more than before, or a node is kept for nobody any more."""


class Hint(NamedTuple):
    """An event that can help: whom it lets be asked, and (any of) what must have come of it."""

    event: type[Payload]
    asks: int
    when: int = TAKEN


LEFT: Final = (
    Hint(PodGone, SOME),
    Hint(PlacementVoided, SOME),
    Hint(PodPlaced, SOME, REFUSED),
    Hint(PodChanged, SOME),  # it may take less of its host
    Hint(PodResized, SOME),
)
TOLD: Final = (Hint(NodeObserved, SOME), Hint(NodeReported, SOME))
HEARD: Final = (*TOLD, Hint(NodeHeard, SOME))
UNCORDONED: Final = (Hint(NodeUncordoned, SOME), Hint(NodeCordonLifted, SOME))
CUT: Final = (Hint(ConfigurationChanged, REORDERED),)
"""How cards may be cut; the document may name a policy as well."""
PARTS: Final = (*TOLD, *CUT)
ORDERED: Final = (Hint(PolicyChanged, REORDERED), Hint(PricesLearnt, REORDERED), *CUT)
"""Another order of devices may let containers in that collided, or a gang."""
HOST: Final = (*LEFT, *TOLD)
OFFERED: Final = (
    *TOLD,
    Hint(DeviceHealthChanged, SOME),
    Hint(DeviceUncordoned, SOME),
    Hint(DeviceCordonLifted, SOME),
    *CUT,
)
DEVICE: Final = (*LEFT, *OFFERED, *ORDERED)
"""A policy may want devices for one pod alone, so that it decides of amounts as well."""
NEAR: Final = (
    Hint(PodPlaced, SOME, MOVED | REFUSED),
    Hint(PodAdopted, SOME, MOVED),
    Hint(PlacementVoided, SOME, MOVED),
    Hint(PodGone, SOME, MOVED),
    Hint(PodChanged, SOME, MOVED),
    Hint(NamespaceObserved, SOME, MOVED),  # terms may mean other namespaces now
    Hint(NamespaceGone, SOME, MOVED),
    Hint(NodeGone, SOME),  # it is no domain any more, or takes the label of its domain with it
    *TOLD,
)
HELD: Final = (
    Hint(PodGone, SOME, FREED),
    Hint(PodChanged, SOME, FREED),
    Hint(PodResized, SOME, FREED),
    Hint(PlacementVoided, SOME, FREED),
    Hint(PodPlaced, SOME, REFUSED),
    Hint(NodeGone, SOME, FREED),
    *TOLD,
    *ORDERED,
)
HELD_BY_QUEUE: Final = (
    *HELD,
    Hint(QueueObserved, SOME),
    Hint(PodGroupObserved, SOME, FREED),  # its pods may be of another queue now
)
HELD_BY_NAMESPACE: Final = (*HELD, Hint(QuotaObserved, SOME), Hint(QuotaGone, SOME))
KEPT: Final = (
    *LEFT,
    *TOLD,
    Hint(PodPlaced, SOME, FREED | REFUSED),  # the one for which the node was kept has a place
    Hint(PodRefused, SOME, FREED),  # or none although no pod has to leave for it any more
)
CLAIMED: Final = (Hint(VolumeClaimObserved, SOME), Hint(VolumeClaimGone, SOME))
CLAIMED_THERE: Final = (*CLAIMED, *TOLD)
MOUNTED: Final = (*CLAIMED, *HOST, Hint(NodeGone, SOME))
"""The pod that mounted the claim, or had its place, may be gone with its node."""
FEWER: Final = (
    Hint(PodGroupObserved, GANG),
    Hint(PodPlaced, GANG),
    Hint(PodAdopted, GANG),
    Hint(PodChanged, GANG),
)
COMPLETED: Final = (*FEWER, Hint(PodSubmitted, GANG), Hint(PlacementVoided, GANG))


class Unit(Enum):
    """What the needed and available amounts of a code count."""

    NOTHING = ""
    MIB = "MiB"
    MILLI_CPU = "CPU"
    CORES = "cores"
    PIECES = "pieces"
    SLOTS = "slots"
    PLACES = "MIG places"
    AI_CPUS = "AI CPUs"
    TAINTS = "taints"
    DEVICES = "devices"
    PODS = "pods"
    PORTS = "ports"
    DISKS = "disks"
    VOLUMES = "volumes"


class Kind(Enum):
    """What sort of cause it is, by what ends it."""

    OTHER = "other"
    FREED = "freed"
    """It ends where shares are freed, on a node that is large enough."""
    LASTING = "lasting"
    """No end of any pod takes it away: it is what nodes and devices are."""
    LIMIT = "limit"
    """The pod's queue or namespace is the cause, and no node."""


LARGER: Final = "a larger device or node, or a smaller ask"
Check = TypeVar("Check")


class Cause(NamedTuple, Generic[Check]):
    """A refusal code: what was wrong, what would end it, and which events may.

    `fix` may have the fields `{node}` and `{device}`. `when_empty` and `fix_when_empty` are the
    same of a node or device with nothing on it, where that differs: nothing that ends or recovers
    helps there. The code of a filter has its `check`, the rule that a node or device must pass, and
    `wanted`: whether a pod of this shape asks for it at all; None where every pod does."""

    code: RefusalCode
    phrase: str
    fix: str
    hints: tuple[Hint, ...]
    unit: Unit = Unit.NOTHING
    when_empty: str = ""
    fix_when_empty: str = ""
    kind: Kind = Kind.OTHER
    check: Check | None = None
    wanted: Callable[[Shape], object] | None = None


def pairs(filters: tuple[Cause[Check], ...]) -> tuple[tuple[RefusalCode, Check], ...]:
    """The codes and the checks alone, for loops that run often."""
    return tuple((each.code, each.check) for each in filters if each.check is not None)
