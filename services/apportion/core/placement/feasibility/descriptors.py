"""The fields that describe a refusal code: texts, unit, filter, and the events that may end it.

Invariant: apart from this package, only the module that returns a code refers to it by name."""

from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

import apportion_schemas as events
from apportion.core.ledger.state import NodeState
from apportion_schemas import RefusalCode, Shape
from apportion_schemas.quantities import Payload

# `Final[int]`: compiled code that imports such a constant has the number instead of the name

# wake shape queues that have room on a changed node, and those whose needs are unknown
SOME: Final[int] = 1
# also wake those whose containers may collide; another device order may avoid that
REORDERED: Final[int] = 2
GANG: Final[int] = 4  # wake the gang of the event

TAKEN: Final[int] = 1  # the fold applied the event
# the fold refused the event, so the room that a decision counted on was not taken
REFUSED: Final[int] = 2
MOVED: Final[int] = 4  # a node's count of selected pods changed, or the selectors did
# a queue or namespace may allocate more than before, or a node is no longer nominated
FREED: Final[int] = 8


class Hint(NamedTuple):
    """A type of event that may end a refusal, so that refused pods are tried again."""

    event: type[Payload]
    asks: int  # bit mask of the shape queues to wake
    when: int = TAKEN  # condition on the event


def _each(asks: int, *kinds: type[Payload], when: int = TAKEN) -> tuple[Hint, ...]:
    return tuple(Hint(kind, asks, when) for kind in kinds)


LEFT: Final = (
    # a changed pod's host requests may be lower
    *_each(SOME, events.PodGone, events.PlacementVoided, events.PodChanged, events.PodResized),
    Hint(events.PodPlaced, SOME, REFUSED),
)
TOLD: Final = _each(SOME, events.NodeObserved, events.NodeReported, events.DevicesRegistered)
HEARD: Final = (*TOLD, Hint(events.NodeHeard, SOME))
UNCORDONED: Final = _each(SOME, events.NodeUncordoned, events.NodeCordonLifted)
# other MIG geometries; the document may also set a policy
CUT: Final = _each(REORDERED, events.ConfigurationChanged)
PARTS: Final = (*TOLD, *CUT)
# another order of devices may let in a gang, or containers that collided
ORDERED: Final = (*_each(REORDERED, events.PolicyChanged, events.PricesLearnt), *CUT)
HOST: Final = (*LEFT, *TOLD)
_MENDED: Final = (events.DeviceHealthChanged, events.DeviceUncordoned, events.DeviceCordonLifted)
OFFERED: Final = (*TOLD, *_each(SOME, *_MENDED), *CUT)
# a policy may make devices exclusive, so it affects amounts as well
DEVICE: Final = (*LEFT, *OFFERED, *ORDERED)
_ENDED: Final = (events.PlacementVoided, events.PodGone, events.PodChanged)
NEAR: Final = (
    Hint(events.PodPlaced, SOME, MOVED | REFUSED),
    *_each(SOME, events.PodAdopted, *_ENDED, when=MOVED),
    # terms may select other namespaces now
    *_each(SOME, events.NamespaceObserved, events.NamespaceGone, when=MOVED),
    Hint(events.NodeGone, SOME),  # its domain may be gone with it
    *TOLD,
)
HELD: Final = (
    *_each(SOME, *_ENDED, events.PodResized, events.NodeGone, when=FREED),
    Hint(events.PodPlaced, SOME, REFUSED),
    *TOLD,
    *ORDERED,
)
HELD_BY_QUEUE: Final = (
    *HELD,
    Hint(events.QueueObserved, SOME),
    Hint(events.PodGroupObserved, SOME, FREED),  # its pods may be in another queue now
)
BEHIND: Final = (*HELD_BY_QUEUE, Hint(events.PodPlaced, SOME, FREED))
HELD_BY_NAMESPACE: Final = (*HELD, *_each(SOME, events.QuotaObserved, events.QuotaGone))
KEPT: Final = (
    *LEFT,
    *TOLD,
    Hint(events.PodPlaced, SOME, FREED | REFUSED),  # the pod for which the node was kept is placed
    Hint(events.PodRefused, SOME, FREED),  # or refused, although it needs no eviction any more
)
# nodes are reserved for other pods, or for none; that may also end with the events of these pods
RESERVED: Final = (
    *KEPT,
    *_each(
        SOME, events.NodesReserved, events.PodGroupObserved, events.ConfigurationChanged, when=FREED
    ),
)
CLAIMED: Final = _each(SOME, events.VolumeClaimObserved, events.VolumeClaimGone)
CLAIMED_THERE: Final = (*CLAIMED, *TOLD)
# the pod that mounted the claim, or was in the way, may be gone with its node
MOUNTED: Final = (*CLAIMED, *HOST, Hint(events.NodeGone, SOME))
FEWER: Final = _each(
    GANG, events.PodGroupObserved, events.PodPlaced, events.PodAdopted, events.PodChanged
)
OF_DOMAIN: Final = (*HOST, *DEVICE, *FEWER)
COMPLETED: Final = (*FEWER, *_each(GANG, events.PodSubmitted, events.PlacementVoided))


class Unit(Enum):
    """The unit of the amounts in a refusal."""

    NOTHING = ""
    MIB = "MiB"
    MILLI_CPU = "CPU"
    CORES = "cores"
    UNITS = "units"
    SLOTS = "slots"
    PLACES = "MIG placements"
    AI_CPUS = "AI CPUs"
    TAINTS = "taints"
    DEVICES = "devices"
    PODS = "pods"
    PORTS = "ports"
    DISKS = "disks"
    VOLUMES = "volumes"


class Kind(Enum):
    """Groups refusal codes by what ends the refusal."""

    OTHER = "other"
    FREED = "freed"  # ends when shares are freed on a node that is large enough
    LASTING = "lasting"  # a property of nodes or devices, which no released pod changes
    LIMIT = "limit"  # caused by the pod's queue or namespace, not by a node


LARGER: Final = "use a larger device or node, or request less"
Check = TypeVar("Check")


class Cause(NamedTuple, Generic[Check]):
    """A refusal code with its description, its fix, and the events that may end the refusal."""

    code: RefusalCode
    phrase: str
    fix: str  # `{node}` and `{device}` are replaced by names
    hints: tuple[Hint, ...]
    unit: Unit = Unit.NOTHING
    when_empty: str = ""  # for a node or device too small even when empty
    fix_when_empty: str = ""
    kind: Kind = Kind.OTHER
    check: Check | None = None  # the rule of the filter
    wanted: Callable[[Shape], object] | None = None  # shapes that the rule concerns; None is all
    closes: Callable[[NodeState], object] | None = None  # nodes that the check may refuse


def pairs(filters: tuple[Cause[Check], ...]) -> tuple[tuple[RefusalCode, Check], ...]:
    """Return the code and the check of each filter that has a check, for loops that run often."""
    return tuple((each.code, each.check) for each in filters if each.check is not None)
