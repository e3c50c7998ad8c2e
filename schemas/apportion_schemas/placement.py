"""What was decided and why: the events that only a scheduler writes.

A decision carries its explanation: a placement names the nodes it was preferred to, a refusal
counts its causes. Refusals are codes with amounts; words are made from them at the edge."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.cluster import VolumeClaimState
from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    COUNT_MAX,
    NAME_MAX,
    Cores,
    Key,
    MemoryMib,
    Name,
    Natural,
    Payload,
    Priority,
    Text,
)
from apportion_schemas.workload import Containers, Controls

CODE_PATTERN = "^[A-Z][A-Za-z]{2,63}$"


class RefusalCode(StrEnum):
    """Why one node or device did not fit; the filters themselves say in which order.

    These words are open: one more of them is no new version of the events that name them. A build
    that does not know a word keeps it as it stands, so that all builds have the same state."""

    NODE_GONE = "NodeGone"
    NODE_NOT_READY = "NodeNotReady"
    AGENT_SILENT = "AgentSilent"
    DEVICE_PLUGIN_FOREIGN = "DevicePluginForeign"
    NODE_CORDONED = "NodeCordoned"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    TAINT_NOT_TOLERATED = "TaintNotTolerated"
    NODE_LABELS_MISMATCH = "NodeLabelsMismatch"
    CPU_INSUFFICIENT = "CpuInsufficient"
    HOST_MEMORY_INSUFFICIENT = "HostMemoryInsufficient"
    PODS_EXHAUSTED = "PodsExhausted"
    EXTENDED_RESOURCE_INSUFFICIENT = "ExtendedResourceInsufficient"
    HOST_PORT_TAKEN = "HostPortTaken"
    DISK_IN_USE = "DiskInUse"
    VOLUME_CLAIM_NOT_READY = "VolumeClaimNotReady"
    VOLUME_CLAIM_IN_USE = "VolumeClaimInUse"
    VOLUME_NODE_MISMATCH = "VolumeNodeMismatch"
    VOLUMES_EXHAUSTED = "VolumesExhausted"
    POD_AFFINITY_MISMATCH = "PodAffinityMismatch"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    TOPOLOGY_SPREAD_EXCEEDED = "TopologySpreadExceeded"
    NO_SUCH_DEVICE = "NoSuchDevice"
    MODE_MISMATCH = "ModeMismatch"
    TYPE_MISMATCH = "TypeMismatch"
    UUID_MISMATCH = "UuidMismatch"
    INDEX_MISMATCH = "IndexMismatch"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_CORDONED = "DeviceCordoned"
    DEVICE_IN_USE = "DeviceInUse"
    SLOTS_EXHAUSTED = "SlotsExhausted"
    CORES_INSUFFICIENT = "CoresInsufficient"
    MEMORY_INSUFFICIENT = "MemoryInsufficient"
    MIG_NO_PROFILE = "MigNoProfile"
    MIG_SLICES_OCCUPIED = "MigSlicesOccupied"
    TEMPLATE_CPU_INSUFFICIENT = "TemplateCpuInsufficient"
    TEMPLATE_NONE_FITS = "TemplateNoneFits"
    NUMA_MISMATCH = "NumaMismatch"
    MODULES_IN_USE = "ModulesInUse"
    DEVICES_TOO_FEW = "DevicesTooFew"
    CONTAINERS_COLLIDE = "ContainersCollide"
    NODE_NOMINATED = "NodeNominated"
    GANG_INCOMPLETE = "GangIncomplete"
    GANG_TOO_LARGE = "GangTooLarge"
    QUEUE_CLOSED = "QueueClosed"
    QUEUE_CAPABILITY_EXCEEDED = "QueueCapabilityExceeded"
    QUEUE_CARDS_EXCEEDED = "QueueCardsExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"

    @classmethod
    def _missing_(cls, value: object) -> "RefusalCode | None":
        if not isinstance(value, str) or re.match(CODE_PATTERN, value) is None:
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class MigInstance(Payload, frozen=True):
    """A MIG instance: the profile's name and the memory slices that it covers.

    Where a person has said into which groups of instances cards of this model may be cut, `group`
    is the one that the card follows as long as it is cut, and `position` the instance's in it."""

    profile: Name
    start: Annotated[int, Meta(ge=0, lt=32)]
    size: Annotated[int, Meta(ge=1, le=32)]
    group: Annotated[str, Meta(max_length=32)] = ""
    position: Annotated[int, Meta(ge=0, lt=256)] = 0


class Share(Payload, frozen=True):
    """What one container holds of one device.

    `memory_mib` and `cores` are charged to the device. A MIG instance or a vNPU template says what
    the container really gets where the device is cut in fixed pieces."""

    container: Name
    device: Name
    memory_mib: MemoryMib
    cores: Cores
    instance: MigInstance | None = None
    template: Annotated[str, Meta(max_length=64)] | None = None


class Score(Payload, frozen=True):
    """A node that fitted, with its total and the parts it came from; each part is 0 to 100."""

    node: Name
    total: float
    parts: dict[Name, float] = {}


@event("placement.{node}", "scheduler", born=2)
class PodPlaced(Payload, frozen=True):
    """A pod has a place. `previous` is the SHA-256 of the placement before it on that node.

    `previous` is over the bytes of the whole message, so whoever reads `placement.<node>` can show
    from the data alone that nothing was lost, reordered or rewritten. `fitting` of `nodes` could
    have taken the pod; `runners_up` are the best of the others. `borrowed` is what containers have
    of the shares of others while those do not run, and `controls` how they are to be held: with
    these two the event is all that the node's agent has to know of the pod."""

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)]
    score: Score
    runners_up: Annotated[tuple[Score, ...], Meta(max_length=8)] = ()
    fitting: Natural = 0
    nodes: Natural = 0
    previous: Annotated[str, Meta(max_length=64)] = ""
    borrowed: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    controls: Controls = {}


@event("placement.{node}", "scheduler")
class PlacementVoided(Payload, frozen=True):
    """A placement that came to nothing: its shares are free and the pod is pending again."""

    pod: Name
    attempt: Natural
    node: Name
    reason: Text
    previous: Annotated[str, Meta(max_length=64)] = ""


@event("placement.{node}", "scheduler")
class PodEvicted(Payload, frozen=True):
    """A pod is to give up its place for one of higher priority; it holds it until it is gone.

    `beneficiary` is the uid of the pod for which it goes, `beneficiary_name` that one's
    `namespace/name`, and `nominated` the node where that is to be placed, which takes no pod of its
    priority or less until then. `budgets` are the PodDisruptionBudgets that this exceeds. The
    binder deletes the pod, with the grace that its own spec gives it."""

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    priority: Priority
    beneficiary: Name
    beneficiary_name: Text
    beneficiary_priority: Priority
    nominated: Name
    reason: Literal["preempted"]
    budgets: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    previous: Annotated[str, Meta(max_length=64)] = ""


@event("placement.{node}", "scheduler")
class PodResized(Payload, frozen=True):
    """A pod that runs holds more or less of the same devices from now on.

    `shares` are all that it holds, in the order of its placement, and `asked` the revision of the
    ResizeAsked that this answers."""

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    asked: Natural
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)]
    previous: Annotated[str, Meta(max_length=64)] = ""


class NearMiss(Payload, frozen=True):
    """A node (and device) that nearly fitted: what the filter needed and what there was."""

    node: Name
    code: RefusalCode
    needed: Natural
    available: Natural
    device: Annotated[str, Meta(max_length=253)] = ""


class GangShortage(Payload, frozen=True):
    """How far a gang got: pods that must start together, pods there are, and pods that fitted."""

    needed: Natural
    present: Natural
    fitting: Natural


class QueueShortage(Payload, frozen=True):
    """What keeps a pod out of its queue: how much it needs, and what the queue may still hold.

    `resource` is as the queue names it: one of its capability, or a model of its card quota. CPU is
    in thousandths, memory in MiB. It is empty where the queue is closed."""

    queue: Name
    resource: Key = ""
    needed: Natural = 0
    available: Natural = 0


class QuotaShortage(Payload, frozen=True):
    """What keeps a pod out of its namespace: the quota, under which name it counts what is lacking,
    how much the pod needs, how much pods of the namespace hold, and the most that they may."""

    quota: Name
    resource: Key
    needed: Natural
    used: Natural
    most: Natural


ResizeCode = Literal[
    "no-device",
    "container-unknown",
    "container-ambiguous",
    "mode",
    "memory-beyond-device",
    "memory",
    "cores",
    "device-gone",
    "limit",
]
"""Why a pod cannot have another size: it holds no device, the container that was named does not, or
several do; its device is shared in a mode whose shares have one size; no device of its kind has so
much memory, or it has not got so much memory or cores free; its agent does not report it any more;
or a queue or a quota allows no more."""


@event("pending.{pod}", "scheduler")
class ResizeRefused(Payload, frozen=True):
    """A pod that runs cannot have what was asked for it, and holds what it held.

    `asked` is the revision of the ResizeAsked that this answers. `containers` are those that hold
    devices, where that is the trouble. `needed` and `available` are MiB or percent beyond what the
    pod holds, or MiB in all where no device has so much."""

    pod: Name
    namespace: Name
    name: Name
    asked: Natural
    code: ResizeCode
    containers: Containers = ()
    device: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    mode: Annotated[str, Meta(max_length=32)] = ""
    needed: Natural = 0
    available: Natural = 0
    queue: QueueShortage | None = None
    quota: QuotaShortage | None = None


class VolumeShortage(Payload, frozen=True):
    """The claim for which a pod may go nowhere, and its state; `in-use`: another pod has it, and
    only one may."""

    claim: Name
    state: VolumeClaimState | Literal["in-use"]


@event("pending.{pod}", "scheduler", born=2)
class PodRefused(Payload, frozen=True):
    """No node fits. `reasons` counts nodes per code; written only when the set of codes changes, or
    the quota that is too small.

    `gang` is set for a pod whose gang could not be placed whole; the reasons are then those of the
    first member that found no place beside the others, without what these would take: a node that
    has room for it alone is not counted. `queue` is set where nodes have room that the pod's queue
    may not take, which is counted under its code; on no node is it counted where nodes were not
    looked at. `quota` is set where its namespace may not take it, in the same way. `volume` is set
    where a claim of the pod keeps it from every node."""

    pod: Name
    namespace: Name
    name: Name
    reasons: dict[RefusalCode, Natural]
    nodes: Natural
    nearest: Annotated[tuple[NearMiss, ...], Meta(max_length=8)] = ()
    gang: GangShortage | None = None
    queue: QueueShortage | None = None
    quota: QuotaShortage | None = None
    volume: VolumeShortage | None = None
