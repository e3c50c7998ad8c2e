"""Facts from Kubernetes that decisions depend on: nodes, gangs, queues, quotas and so on."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.inventory import Device
from apportion_schemas.quantities import (
    COUNT_MAX,
    LEVELS_MAX,
    PARTS_MAX,
    CpuMilli,
    HostMemoryMib,
    Index,
    Key,
    Labels,
    Name,
    Natural,
    Payload,
    Priority,
    Text,
)
from apportion_schemas.workload import (
    Disk,
    HostPort,
    LabelExpression,
    Names,
    Plugin,
    PodTerms,
    Term,
)


class Taint(Payload, frozen=True):
    """One entry of a node's `spec.taints[]`; it keeps away pods without a matching toleration."""

    key: Key
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: Text = ""


class Neighbour(Payload, frozen=True):
    """A group of `count` identical pods that other schedulers bound to a node.

    The pods have the same namespace, labels, host ports, disks, volume claims and required
    anti-affinity, all of which affect our pods. `terminating` means that they are being deleted."""

    namespace: Name
    labels: Labels = {}
    count: Annotated[int, Meta(ge=1, le=4096)] = 1
    ports: Annotated[tuple[HostPort, ...], Meta(max_length=256)] = ()
    anti_affinity: PodTerms = ()
    disks: Annotated[tuple[Disk, ...], Meta(max_length=256)] = ()
    volume_claims: Names = ()
    terminating: bool = False


@event("cluster.node.{node}", "watcher", born=4)
class NodeObserved(Payload, frozen=True):
    """A node as Kubernetes reports it, without the amounts that pods of other schedulers use.

    Amounts are `status.allocatable`, minus what those pods use. `unnamed_families` are device
    families that the node cannot offer: pods of other schedulers use some of the devices, and it is
    unknown which. `version` is the API server's revision of these facts, or 0 without an API
    server; the highest version counts. `volume_limits` is the number of attachable volumes by CSI
    driver, and 0 for a missing driver that the volumes need."""

    node: Name
    ready: bool
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    pods: Natural
    extended: dict[Key, Natural] = {}
    labels: Labels = {}
    taints: Annotated[tuple[Taint, ...], Meta(max_length=256)] = ()
    unschedulable: bool = False
    unhealthy_indexes: Annotated[tuple[Index, ...], Meta(max_length=COUNT_MAX)] = ()
    version: Natural = 0
    unnamed_families: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    others: Annotated[tuple[Neighbour, ...], Meta(max_length=1024)] = ()  # pods of other schedulers
    volume_limits: dict[Key, Natural] = {}


@event("cluster.devices.{node}", "watcher")
class DevicesRegistered(Payload, frozen=True):
    """The devices of a node that another system's device plugin registered in an annotation.

    While the annotation has an entry for a device family, that plugin allocates the family's
    devices, unless our agent does. `problem` is why the annotation cannot be read; then the
    plugin's devices are not offered. `devices` and `problem` are empty if the plugin left the node.
    `version` is as in QuotaObserved."""

    node: Name
    plugin: Plugin = ""
    devices: Annotated[tuple[Device, ...], Meta(max_length=COUNT_MAX)] = ()
    problem: Text = ""
    version: Natural = 0


@event("cluster.node.{node}", "watcher")
class NodeGone(Payload, frozen=True):
    """A node left the cluster."""

    node: Name


class GangPart(Payload, frozen=True):
    """The pods of a gang that run `tasks`, for which other topology levels apply.

    If `split_by` is set, they are divided by the value of this pod label. If `size` is set, `size`
    pods with the same value are placed together, or none."""

    tasks: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=PARTS_MAX)]
    required_level: Key | Literal[""] = ""
    preferred_level: Key | Literal[""] = ""
    split_by: Key | Literal[""] = ""
    size: Natural = 0
    topology: Name | Literal[""] = ""  # if it is another one than that of the whole gang
    levels: Annotated[tuple[Key, ...], Meta(max_length=LEVELS_MAX)] = ()  # of this topology


@event("cluster.group.{group}", "watcher", born=3)
class PodGroupObserved(Payload, frozen=True):
    """A PodGroup: at least `min_available` (`minMember`) of its pods start, or none.

    The nodes with the same value of a label are a topology domain, such as a rack. If `levels` has
    several labels, a domain of one of them is a part of a domain of the label before it."""

    group: Name
    min_available: Natural
    min_tasks: dict[Name, Natural] = {}
    queue: Name = "default"
    priority: Priority = 0
    required_level: Key | Literal[""] = ""  # label key: all pods must be in one such domain
    preferred_level: Key | Literal[""] = (
        ""  # label key: all pods are in one such domain if they fit
    )
    topology: Name | Literal[""] = ""  # KAI's Topology with the two levels
    levels: Annotated[tuple[Key, ...], Meta(max_length=LEVELS_MAX)] = ()  # label keys of a topology
    # parts that contain others are before them
    parts: Annotated[tuple[GangPart, ...], Meta(max_length=PARTS_MAX)] = ()
    # `disruptionMode: all`: pods beyond the minimum are evicted with the others, not before
    whole: bool = False


@event("cluster.group.{group}", "watcher")
class PodGroupGone(Payload, frozen=True):
    """A PodGroup was deleted; readers forget its gang once the gang has no pods."""

    group: Name


@event("cluster.queue.{queue}", "watcher")
class QueueObserved(Payload, frozen=True):
    """A queue of Volcano or KAI: its place in the tree, and what its pods may use.

    Amounts are by resource name, with CPU in thousandths of a core and memory in MiB. In the fields
    `cards…`, amounts are by device model, as in `volcano.sh/card.quota`."""

    queue: Name
    parent: Name | Literal[""] = ""  # empty: at the top
    weight: Natural = 1  # its part of the surplus, in relation to its siblings
    priority: Priority = 0  # of siblings, the higher one gets the surplus first
    capability: dict[Key, Natural] = {}  # limits; a resource without an entry is unlimited
    cards: dict[Key, Natural] = {}  # limits by model; if set, models without an entry are forbidden
    deserved: dict[Key, Natural] = {}  # what the queue may claim back from queues that borrow it
    cards_deserved: dict[Key, Natural] = {}
    guarantee: dict[Key, Natural] = {}  # never lent to other queues
    cards_guarantee: dict[Key, Natural] = {}
    reclaimable: bool = True  # False: its pods are never evicted for another queue
    fifo: bool = False  # a pod that fits nowhere keeps back the pods behind it
    safe_s: Natural = 0  # how long its pods run before they may be evicted for another queue
    open: bool = True


@event("cluster.quota.{namespace}.{quota}", "watcher")
class QuotaObserved(Payload, frozen=True):
    """A `ResourceQuota` with its limits of extended resources, such as devices.

    `hard` has the extended resources of `spec.hard` in whole units, under the same names, such as
    `requests.nvidia.com/gpu`. `version` is the API server's revision of these facts; of two events
    about an object, the one with the higher version counts."""

    namespace: Name
    quota: Name
    hard: dict[Key, Natural] = {}
    version: Natural = 0


@event("cluster.quota.{namespace}.{quota}", "watcher")
class QuotaGone(Payload, frozen=True):
    """A `ResourceQuota` was deleted, or no longer limits any extended resource."""

    namespace: Name
    quota: Name


@event("cluster.budget.{namespace}.{budget}", "watcher")
class BudgetObserved(Payload, frozen=True):
    """A `PodDisruptionBudget`, and how many of its pods may be evicted now (`allowed`).

    As in kube-scheduler, an empty selector selects no pod. `version` is as in QuotaObserved."""

    namespace: Name
    budget: Name
    selector: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()
    allowed: Natural = 0
    version: Natural = 0


@event("cluster.budget.{namespace}.{budget}", "watcher")
class BudgetGone(Payload, frozen=True):
    """A `PodDisruptionBudget` was deleted in Kubernetes."""

    namespace: Name
    budget: Name


# first-consumer: bound once a pod that mounts it has a node (WaitForFirstConsumer), unavailable if
# no node could have its volume. unbound: its volume does not exist yet, and is created or found
# without us. missing: the claim does not exist.
VolumeClaimState = Literal[
    "bound", "first-consumer", "unbound", "unavailable", "lost", "missing", "deleting"
]


@event("cluster.volume-claim.{namespace}.{claim}", "watcher")
class VolumeClaimObserved(Payload, frozen=True):
    """A PersistentVolumeClaim that a pod mounts, and the nodes that can access its volume.

    A node can access the volume if it matches at least one term in `nodes`; without terms, all
    nodes can. `single_pod` means that only one pod may use it (`ReadWriteOncePod`). `driver` is the
    volume's CSI driver, empty if unknown. `version` is as in QuotaObserved."""

    namespace: Name
    claim: Name
    state: VolumeClaimState
    nodes: Annotated[tuple[Term, ...], Meta(max_length=1024)] = ()
    single_pod: bool = False
    version: Natural = 0
    driver: Text = ""


@event("cluster.volume-claim.{namespace}.{claim}", "watcher")
class VolumeClaimGone(Payload, frozen=True):
    """No pod mounts the PersistentVolumeClaim any more."""

    namespace: Name
    claim: Name


@event("cluster.namespace.{namespace}", "watcher")
class NamespaceObserved(Payload, frozen=True):
    """The labels of a namespace, without the label `kubernetes.io/metadata.name`.

    `version` is as in QuotaObserved."""

    namespace: Name
    labels: Labels = {}
    version: Natural = 0


@event("cluster.namespace.{namespace}", "watcher")
class NamespaceGone(Payload, frozen=True):
    """A namespace was deleted, or lost its last label."""

    namespace: Name
