"""The scheduler's decisions, with their explanations.

A placement lists the next best nodes; a refusal counts the nodes by cause. Causes are codes with
amounts, and are converted to text only for display."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.cluster import VolumeClaimState
from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    COUNT_MAX,
    GANG_BATCH_MAX,
    NAME_MAX,
    Cores,
    Key,
    MemoryMib,
    Name,
    Natural,
    NoticeSeconds,
    Payload,
    Priority,
    Text,
)
from apportion_schemas.workload import Containers, Controls

CODE_PATTERN = "^[A-Z][A-Za-z]{2,63}$"


class RefusalCode(StrEnum):
    """Why a node or device does not fit a pod, in the order of the filters.

    The set is open: a new code needs no new version of the events that contain it. A build keeps an
    unknown code, so that all builds have the same state."""

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
    GANG_DOMAIN_TOO_SMALL = "GangDomainTooSmall"
    NO_SUCH_DEVICE = "NoSuchDevice"
    MODE_MISMATCH = "ModeMismatch"
    TYPE_MISMATCH = "TypeMismatch"
    GANG_MODEL_MISMATCH = "GangModelMismatch"
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
    SIZES_DIFFER = "SizesDiffer"
    TEMPLATE_CPU_INSUFFICIENT = "TemplateCpuInsufficient"
    TEMPLATE_NONE_FITS = "TemplateNoneFits"
    NUMA_MISMATCH = "NumaMismatch"
    MODULES_IN_USE = "ModulesInUse"
    DEVICES_TOO_FEW = "DevicesTooFew"
    CONTAINERS_COLLIDE = "ContainersCollide"
    NODE_NOMINATED = "NodeNominated"
    NODE_RESERVED = "NodeReserved"
    GANG_INCOMPLETE = "GangIncomplete"
    QUEUE_CLOSED = "QueueClosed"
    QUEUE_CAPABILITY_EXCEEDED = "QueueCapabilityExceeded"
    QUEUE_CARDS_EXCEEDED = "QueueCardsExceeded"
    QUEUE_RESERVED = "QueueReserved"
    QUEUE_FIRST_WAITS = "QueueFirstWaits"
    QUOTA_EXCEEDED = "QuotaExceeded"

    @classmethod
    def _missing_(cls, value: object) -> "RefusalCode | None":
        if not isinstance(value, str) or re.match(CODE_PATTERN, value) is None:
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class MigInstance(Payload, frozen=True):
    """A MIG instance: its profile's name, and which memory slices of the device it covers.

    `group` and `position` are set only if the configuration restricts the model's MIG geometries.
    """

    profile: Name
    start: Annotated[int, Meta(ge=0, lt=32)]
    size: Annotated[int, Meta(ge=1, le=32)]
    group: Annotated[str, Meta(max_length=32)] = ""  # the geometry in use
    position: Annotated[int, Meta(ge=0, lt=256)] = 0  # in that group


class Share(Payload, frozen=True):
    """What one container gets of one device.

    `memory_mib` and `cores` count as allocated on the device. On a device that is divided into
    fixed sizes, the container gets the size of its MIG instance or vNPU template."""

    container: Name
    device: Name
    memory_mib: MemoryMib
    cores: Cores
    instance: MigInstance | None = None
    template: Annotated[str, Meta(max_length=64)] | None = None


class Score(Payload, frozen=True):
    """A node that fits, its total score, and the parts of that score, from 0 to 100 each."""

    node: Name
    total: float
    parts: dict[Name, float] = {}


@event("placement.{node}", "scheduler", born=3)
class PodPlaced(Payload, frozen=True):
    """The scheduler placed a pod on a node.

    `previous` is the SHA-256 of the whole message of the previous placement on that node. So the
    messages on `placement.<node>` alone prove that none was lost, reordered or rewritten.
    `borrowed` are shares that a container may use while their owner does not run; `controls` are
    HAMi-core settings of the containers. If `held`, more placements of the pod's gang follow in
    another batch, and the pod is not bound before the gang has its minimum."""

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)]
    score: Score
    runners_up: Annotated[tuple[Score, ...], Meta(max_length=8)] = ()  # the next best nodes
    fitting: Natural = 0  # nodes that could run the pod
    nodes: Natural = 0  # nodes considered
    previous: Annotated[str, Meta(max_length=64)] = ""
    held: bool = False
    borrowed: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    controls: Controls = {}


@event("placement.{node}", "scheduler")
class PlacementVoided(Payload, frozen=True):
    """The scheduler takes back a placement that failed: its shares are free, the pod is pending."""

    pod: Name
    attempt: Natural
    node: Name
    reason: Text
    previous: Annotated[str, Meta(max_length=64)] = ""


class KeptNode(Payload, frozen=True):
    """A node that is reserved for a pod of a gang while other pods are evicted for the gang."""

    namespace: Name
    pod: Name
    node: Name


@event("placement.{node}", "scheduler", born=2)
class PodEvicted(Payload, frozen=True):
    """The scheduler evicts a pod for another one; the victim stays placed until it ends.

    The reason is `preempted` if the other pod has a higher priority. It is `reclaimed` if the
    victim's queue borrowed what the other pod's queue is entitled to; `queue` and
    `beneficiary_queue` are the two queues. It is `idle` if the victim may be evicted only because
    it did no work for `idle_s` seconds, as the configuration's section `idle` allows.

    `nominated` is the node reserved for the `beneficiary` (a uid): in the meantime, no other pod of
    the same or lower priority is placed there. `kept` are nodes reserved for the other pods of its
    gang, which is `beneficiary_group`; only the first eviction for a gang has them. `budgets` are
    the PodDisruptionBudgets that the eviction exceeds. After `notice_s` seconds, the binder deletes
    the victim with the grace period in its spec."""

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
    reason: Literal["preempted", "reclaimed", "idle"]
    beneficiary_group: Text = ""
    queue: Name | Literal[""] = ""
    beneficiary_queue: Name | Literal[""] = ""
    budgets: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    kept: Annotated[tuple[KeptNode, ...], Meta(max_length=GANG_BATCH_MAX)] = ()
    notice_s: NoticeSeconds = 0
    idle_s: Natural = 0
    previous: Annotated[str, Meta(max_length=64)] = ""


@event("placement.{node}", "scheduler")
class PodResized(Payload, frozen=True):
    """The scheduler resized a running pod, which keeps its devices.

    `shares` are all shares of the pod, in the order of its PodPlaced. `asked` is the revision of
    the ResizeAsked that this event answers."""

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    asked: Natural
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)]
    previous: Annotated[str, Meta(max_length=64)] = ""


class NearMiss(Payload, frozen=True):
    """A node (and device) that nearly fits, with the amount needed and the amount available."""

    node: Name
    code: RefusalCode
    needed: Natural
    available: Natural
    device: Annotated[str, Meta(max_length=253)] = ""


class GangShortage(Payload, frozen=True):
    """How many pods of a gang must start together, how many exist, and how many fit.

    If the gang must be in one topology domain, `fitting` counts the pods that fit in the domain
    with the most room. This domain has the nodes whose label `level` has the value `domain`."""

    needed: Natural
    present: Natural
    fitting: Natural
    level: Key | Literal[""] = ""
    domain: Text = ""  # empty if no node has the label


class QueueShortage(Payload, frozen=True):
    """The limit of a queue that a pod exceeds: what the pod needs, and what is left.

    `resource` is a name in the queue's capability, or a model in its card quota; empty if the queue
    is closed or `behind` is set. CPU is in thousandths of a core, memory in MiB. If `reserved`, the
    remaining amount is guaranteed to other queues. If the queue is first in, first out, `behind` is
    its first pod (`namespace/name`), for which this pod must wait."""

    queue: Name
    resource: Key = ""
    needed: Natural = 0
    available: Natural = 0
    reserved: bool = False
    behind: Text = ""


class QuotaShortage(Payload, frozen=True):
    """The quota that a pod exceeds: what the pod needs, what its namespace uses, and the limit."""

    quota: Name
    resource: Key
    needed: Natural
    used: Natural
    most: Natural


# no-device: the pod has no device; container-unknown: the named container has none;
# container-ambiguous: several containers have devices; mode: shares of this mode have one size;
# memory-beyond-device: more than a device of its kind has; memory, cores: not enough free;
# device-gone: no longer reported by its agent; limit: refused by a queue or a quota.
ResizeCode = Literal[
    "no-device",
    "container-unknown",
    "container-ambiguous",
    "mode",
    "plugin",
    "memory-beyond-device",
    "memory",
    "cores",
    "device-gone",
    "limit",
]


@event("pending.{pod}", "scheduler", born=2)
class ResizeRefused(Payload, frozen=True):
    """The scheduler refused to resize a running pod, which keeps its shares.

    `asked` is the revision of the ResizeAsked. `needed` and `available` are MiB or percent beyond
    the pod's share. If the device is too small even without other pods, `needed` is the new amount
    and `available` the size of the device, both in MiB."""

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


@event("limits.{kind}.{name}", "scheduler")
class LimitsChecked(Payload, frozen=True):
    """A scheduler checked the limits of a queue or namespace for decisions in the same batch.

    Each of these events expects the previous event on its subject. So if two schedulers check the
    same limits at once, the server refuses the event of one scheduler. Queue `root` means all
    queues."""

    kind: Literal["queue", "namespace"]
    name: Name


@event("limits.reservation", "scheduler")
class NodesReserved(Payload, frozen=True):
    """The scheduler reserves nodes for a pod or gang that has waited for long.

    Each of these events replaces the one before, and expects it on the subject, so there is at most
    one reservation. `kept` has the node of each pod; without nodes, the event ends the reservation.
    `pod` is the pod, or the first one of the gang; `name` is the gang, or the pod as
    `namespace/name`. At `starts`, all pods of the reservation can start if running pods end at
    their deadlines. It is empty if other pods must end, too."""

    pod: Name | Literal[""] = ""
    name: Text = ""
    kept: Annotated[tuple[KeptNode, ...], Meta(max_length=GANG_BATCH_MAX)] = ()
    starts: Text = ""


class VolumeShortage(Payload, frozen=True):
    """The volume claim that keeps a pod from every node, and the claim's state.

    State `in-use`: the claim allows one pod at a time, and another pod uses it."""

    claim: Name
    state: VolumeClaimState | Literal["in-use"]


@event("pending.{pod}", "scheduler", born=3)
class PodRefused(Payload, frozen=True):
    """The scheduler found no node for the pod; `reasons` counts nodes per code.

    The event is written only if the set of codes or the exceeded quota changes. If `gang` is set,
    the gang could not be placed as a whole, and the reasons are about its first pod that did not
    fit. If `queue` or `quota` is set, nodes have room, but the limit of the pod's queue or
    namespace is exceeded. If `volume` is set, a volume claim of the pod keeps it from every
    node."""

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
