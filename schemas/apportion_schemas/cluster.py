"""What Kubernetes says of nodes, gangs, queues and quotas, as far as a decision needs it."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import (
    COUNT_MAX,
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
from apportion_schemas.workload import Disk, HostPort, LabelExpression, Names, PodTerms, Term


class Taint(Payload, frozen=True):
    """One entry of `spec.taints[]` of a node, which keeps pods without the toleration away."""

    key: Key
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: Text = ""


class Neighbour(Payload, frozen=True):
    """Pods on a node that others placed there, `count` of them alike, as far as pods of ours mind.

    They are of one namespace and have the same labels, host ports, disks, volume claims and
    required anti-affinity, which keeps pods away that come after them. `terminating`: the pods are
    being deleted."""

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
    """A node of the cluster; amounts are `status.allocatable` less what other schedulers placed.

    `unhealthy_indexes` are the devices of the annotation `volcano.sh/gpu-unhealthy-ids`.
    `unnamed_families` are families of devices of which pods of other schedulers hold some that
    nobody names, so that none of them can be offered. `version` is the API server's revision as of
    which this is so; of two writers, the one with the lower version has nothing to say. 0 where
    there is no API server. `others` are the pods that other schedulers placed there.
    `volume_limits`: by CSI driver, how many volumes of it the node can have attached
    (`spec.drivers[].allocatable.count` of its CSINode)."""

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
    others: Annotated[tuple[Neighbour, ...], Meta(max_length=1024)] = ()
    volume_limits: dict[Key, Natural] = {}


@event("cluster.node.{node}", "watcher")
class NodeGone(Payload, frozen=True):
    """A node left the cluster."""

    node: Name


@event("cluster.group.{group}", "watcher")
class PodGroupObserved(Payload, frozen=True):
    """A gang: `min_available` of its pods are placed at once or none is (Volcano's `minMember`)."""

    group: Name
    min_available: Natural
    min_tasks: dict[Name, Natural] = {}
    queue: Name = "default"
    priority: Priority = 0


@event("cluster.group.{group}", "watcher")
class PodGroupGone(Payload, frozen=True):
    """A gang's declaration left the cluster; where it has no pods it is forgotten."""

    group: Name


@event("cluster.queue.{queue}", "watcher")
class QueueObserved(Payload, frozen=True):
    """A Volcano queue: its weight and the most it may hold of each resource.

    In `capability` CPU is in thousandths and memory in MiB; whatever is not there is not limited.
    `cards` is `volcano.sh/card.quota`, cards by model: where it is set, one that it leaves out is
    not for this queue."""

    queue: Name
    weight: Natural = 1
    capability: dict[Key, Natural] = {}
    open: bool = True
    cards: dict[Key, Natural] = {}


@event("cluster.quota.{namespace}.{quota}", "watcher")
class QuotaObserved(Payload, frozen=True):
    """A `ResourceQuota`, as far as it may bound devices.

    `hard` is what `spec.hard` says of extended resources, in whole units and under the names that
    it has there: `requests.nvidia.com/gpu`, `limits.nvidia.com/gpumem`. `version` is the API
    server's revision as of which this is so; of two writers, the one with the lower version has
    nothing to say."""

    namespace: Name
    quota: Name
    hard: dict[Key, Natural] = {}
    version: Natural = 0


@event("cluster.quota.{namespace}.{quota}", "watcher")
class QuotaGone(Payload, frozen=True):
    """A quota left the cluster, or bounds no extended resource any more."""

    namespace: Name
    quota: Name


@event("cluster.budget.{namespace}.{budget}", "watcher")
class BudgetObserved(Payload, frozen=True):
    """A `PodDisruptionBudget`: how many of the pods that it selects may be evicted now.

    `allowed` is `status.disruptionsAllowed`; pods of its namespace are selected by `selector`, and
    an empty one selects none, which is kube-scheduler's reading. `version` is as of a quota."""

    namespace: Name
    budget: Name
    selector: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()
    allowed: Natural = 0
    version: Natural = 0


@event("cluster.budget.{namespace}.{budget}", "watcher")
class BudgetGone(Payload, frozen=True):
    """A disruption budget left the cluster."""

    namespace: Name
    budget: Name


VolumeClaimState = Literal[
    "bound", "first-consumer", "unbound", "unavailable", "lost", "missing", "deleting"
]
"""`first-consumer`: it is bound once a pod that mounts it has a node (WaitForFirstConsumer), and
`unavailable` if there is none where it could be. `unbound`: its volume is made or found without us,
and is not there yet. `missing`: there is no such claim."""


@event("cluster.volume-claim.{namespace}.{claim}", "watcher")
class VolumeClaimObserved(Payload, frozen=True):
    """A PersistentVolumeClaim that a pod mounts, with its volume or those it may get.

    `nodes` is where the volume is, or could be: a disjunction of terms as of `NodeConstraints`, and
    empty for anywhere. `single_pod`: no two pods may have it (`ReadWriteOncePod`). `driver` is the
    CSI driver of its volume, or the one that will make it; empty for none that is known. `version`
    is as of a quota."""

    namespace: Name
    claim: Name
    state: VolumeClaimState
    nodes: Annotated[tuple[Term, ...], Meta(max_length=1024)] = ()
    single_pod: bool = False
    version: Natural = 0
    driver: Text = ""


@event("cluster.volume-claim.{namespace}.{claim}", "watcher")
class VolumeClaimGone(Payload, frozen=True):
    """No pod mounts the claim any more."""

    namespace: Name
    claim: Name


@event("cluster.namespace.{namespace}", "watcher")
class NamespaceObserved(Payload, frozen=True):
    """The labels of a namespace, without its name among them. `version` is as of a quota."""

    namespace: Name
    labels: Labels = {}
    version: Natural = 0


@event("cluster.namespace.{namespace}", "watcher")
class NamespaceGone(Payload, frozen=True):
    """A namespace left the cluster, or has no label of its own any more."""

    namespace: Name
