"""What was asked for: pods, in terms that no longer depend on the dialect they were written in.

The writer (watcher, or the command line where there is no Kubernetes) has already read resource
names, units and defaults; `dialect` names the family it found, for whoever must answer in it."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    COUNT_MAX,
    WHOLE,
    Count,
    CpuMilli,
    HostMemoryMib,
    Index,
    Key,
    Labels,
    MemoryMib,
    Name,
    Natural,
    Payload,
    Percent,
    Priority,
    Text,
    Weight,
)

Names = Annotated[tuple[Name, ...], Meta(max_length=256)]
Containers = Annotated[tuple[Name, ...], Meta(max_length=CONTAINERS_MAX)]
Control = Literal[
    "ACTIVE_OOM_KILLER",
    "CUDA_DISABLE_CONTROL",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
    "LIBCUDA_LOG_LEVEL",
]
"""Variables of a container's environment that say how HAMi-core is to hold it."""
Controls = Annotated[
    dict[Name, dict[Control, Annotated[str, Meta(max_length=64)]]], Meta(max_length=CONTAINERS_MAX)
]


class Ask(Payload, frozen=True):
    """What one container wants: `count` different devices, and this much of each.

    `memory_mib` is an amount and `memory_percent` a part of the device; exactly one is set (with
    both unset, the whole memory). `cores` is the percent of the device's compute; 100 is the device
    alone. `cap_memory`: an amount above the device's size means the whole device
    (volcano.sh/vgpu-memory). `profile` is a MIG profile by its name: an instance of exactly that
    one. `family` is the device catalogue's."""

    container: Name
    family: Name
    count: Count = 1
    memory_mib: MemoryMib | None = None
    memory_percent: Percent | None = None
    cores: Percent = 0
    cap_memory: bool = False
    profile: Annotated[str, Meta(max_length=32)] = ""
    init: bool = False

    @property
    def whole(self) -> bool:
        """Whether each device is wanted alone and entire."""
        return (
            self.cores == WHOLE and self.memory_mib is None and self.memory_percent in (None, WHOLE)
        )


class DeviceConstraints(Payload, frozen=True):
    """Which devices will do. An empty tuple is no constraint."""

    modes: tuple[Mode, ...] = ()
    use_types: Names = ()
    nouse_types: Names = ()
    use_ids: Names = ()
    nouse_ids: Names = ()
    indexes: Annotated[tuple[Index, ...], Meta(max_length=COUNT_MAX)] = ()
    numa_bind: bool = False


class Toleration(Payload, frozen=True):
    """One entry of `spec.tolerations[]` of a pod, which lets it onto nodes with such a taint."""

    key: Key = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Text = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class NodeExpression(Payload, frozen=True):
    """One match expression of a node selector term.

    `of_field`: the key is no label but the field `metadata.name` (`matchFields`)."""

    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()
    of_field: bool = False


Term = Annotated[tuple[NodeExpression, ...], Meta(max_length=64)]


class PreferredTerm(Payload, frozen=True):
    """A preferred node affinity: a node that matches the term gains the weight."""

    weight: Annotated[int, Meta(ge=1, le=100)]
    term: Term


class HostPort(Payload, frozen=True):
    """`ports[].hostPort` of a container: a port of its node, at `ip` or, if empty, any address."""

    port: Annotated[int, Meta(ge=1, le=65535)]
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    ip: Annotated[str, Meta(max_length=64)] = ""


class Disk(Payload, frozen=True):
    """A disk that pods name themselves; on one node several have it only if all of them read it.

    `name` has its kind before it, as in `iscsi/iqn.2026-01.org:disk`."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    read_only: bool = False


class NodeConstraints(Payload, frozen=True):
    """What the pod needs of a node beside devices; the fields of a Kubernetes pod spec.

    `required` is a disjunction of terms, each a conjunction of expressions."""

    cpu_milli: CpuMilli = 0
    memory_mib: HostMemoryMib = 0
    extended: dict[Key, Natural] = {}
    selector: Labels = {}
    required: Annotated[tuple[Term, ...], Meta(max_length=64)] = ()
    preferred: Annotated[tuple[PreferredTerm, ...], Meta(max_length=64)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=256)] = ()
    ports: Annotated[tuple[HostPort, ...], Meta(max_length=256)] = ()
    disks: Annotated[tuple[Disk, ...], Meta(max_length=256)] = ()


class LabelExpression(Payload, frozen=True):
    """One match expression over the labels of a pod."""

    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


class PodSelector(Payload, frozen=True):
    """Pods whose labels meet every expression; no expression is every pod, no namespace any.

    With `by_label` (`namespaceSelector`) the pods of namespaces whose own labels meet all of it
    count as well as those of `namespaces`, and none beside them."""

    expressions: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()
    namespaces: Names = ()
    by_label: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()


class PodTerm(Payload, frozen=True):
    """The nodes that have the same value of the label `topology_key` as one with such a pod."""

    pods: PodSelector
    topology_key: Key


class PreferredPodTerm(Payload, frozen=True):
    """Such nodes gain the weight for every such pod there; a negative one is anti-affinity."""

    weight: Annotated[int, Meta(ge=-100, le=100)]
    term: PodTerm


class SpreadConstraint(Payload, frozen=True):
    """`spec.topologySpreadConstraints[]`: where such pods are few.

    `required` is `DoNotSchedule`: with the pod, no value of the label `topology_key` may have more
    than `max_skew` such pods above the value that has fewest. Where there are fewer than
    `min_domains` values, the fewest count as none. Nodes count whatever the pod's own selector and
    affinity say of them if `any_node` (`nodeAffinityPolicy: Ignore`), and only without taints that
    it does not tolerate if `untainted` (`nodeTaintsPolicy: Honor`)."""

    pods: PodSelector
    topology_key: Key
    max_skew: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    required: bool = True
    min_domains: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    any_node: bool = False
    untainted: bool = False


PodTerms = Annotated[tuple[PodTerm, ...], Meta(max_length=64)]


class PodConstraints(Payload, frozen=True):
    """Where the pod may be in relation to other pods."""

    affinity: PodTerms = ()
    anti_affinity: PodTerms = ()
    preferred: Annotated[tuple[PreferredPodTerm, ...], Meta(max_length=128)] = ()
    spread: Annotated[tuple[SpreadConstraint, ...], Meta(max_length=64)] = ()


NO_WISHES = PodConstraints()
"""Of most pods, which share it: whoever asks often need not look into it."""


class DeviceWeights(Payload, frozen=True):
    """`hami.io/device-scoring-weights`: how much each part of a device's load counts."""

    slots: Weight
    cores: Weight
    memory: Weight


class Shape(Payload, frozen=True, weakref=True, gc=True):  # weak references need the collector
    """All that decides where a pod may go. Pods of one shape are one class to the scheduler.

    `node_policy` and `device_policy` are the pod's own, empty where the cluster's holds. The latter
    may be a chain with commas: `binpack`, `spread` and `numa` in the order in which devices are
    compared, `mutex` (only idle devices) and `topology-aware` (only the best linked ones)."""

    asks: Annotated[tuple[Ask, ...], Meta(max_length=CONTAINERS_MAX)] = ()
    devices: DeviceConstraints = DeviceConstraints()
    node: NodeConstraints = NodeConstraints()
    pods: PodConstraints = NO_WISHES
    node_policy: Annotated[str, Meta(max_length=64)] = ""
    device_policy: Annotated[str, Meta(max_length=64)] = ""
    device_weights: DeviceWeights | None = None


@event("workload.{uid}", "watcher", born=3)
class PodSubmitted(Payload, frozen=True):
    """A pod wants a place. `uid` is `metadata.uid`; `group` is `namespace/name` of its gang.

    `high_priority` names the containers whose tasks go first on a shared device (HAMi's
    `nvidia.com/priority: 0`); it binds the node's agent and no decision. `init_containers` and
    `containers` name those of the spec, in its order, for device plugins that count them; a pod
    that asks for no device leaves them out. `chooser` is the kube-scheduler that chooses the pod's
    node and asks our extender; the pod is then placed when that is asked for, where it says.
    `queue` is what the pod itself says; a gang's queue goes before it, and without both it is
    `default`. `borrowing` are asks that take nothing: the first container that holds as much, and
    does not run beside them, lends them its devices. A container that holds more than it asks for,
    because it lends, has its own ask there as well. While the pod has `gates`
    (`spec.schedulingGates`) no place is looked for. Where not `preempts` (`preemptionPolicy:
    Never`) no pod of lower priority is evicted for it, and unless it is `evictable`
    (`volcano.sh/preemptable: "false"`) it goes for nobody. `volume_claims` name the
    PersistentVolumeClaims that it mounts, those of generic ephemeral volumes among them. `controls`
    is what containers that ask for devices say of themselves in their environment."""

    uid: Name
    namespace: Name
    name: Name
    shape: Shape
    dialect: Name
    labels: Labels = {}
    priority: Priority = 0
    group: Text = ""
    task: Text = ""
    owner: Text = ""
    high_priority: Containers = ()
    init_containers: Containers = ()
    containers: Containers = ()
    chooser: Text = ""
    queue: Name = ""
    borrowing: Annotated[tuple[Ask, ...], Meta(max_length=CONTAINERS_MAX)] = ()
    gates: Names = ()
    preempts: bool = True
    evictable: bool = True
    volume_claims: Names = ()
    controls: Controls = {}


@event("workload.{uid}", "watcher", born=2)
class PodChanged(Payload, frozen=True):
    """A live pod says otherwise of itself than when it was submitted, or changed last.

    It is the whole of what may change of a pod: its labels, its gates, which only ever go, its CPU
    and memory, which are resized in place (`pods/resize`), and whether it is being deleted
    (`metadata.deletionTimestamp`) while it still runs on its node."""

    uid: Name
    labels: Labels = {}
    gates: Names = ()
    cpu_milli: CpuMilli = 0
    memory_mib: HostMemoryMib = 0
    terminating: bool = False


@event("workload.{uid}", "watcher")
class PodGone(Payload, frozen=True):
    """A pod finished, failed, was deleted or evicted: what it held is free."""

    uid: Name
    reason: Text = ""


@event("workload.{uid}", "watcher")
class PodRejected(Payload, frozen=True):
    """A pod that cannot be read as it is: no place is looked for until that is mended.

    `field` is the path in the pod's manifest, `value` what stands there, `fix` what to do."""

    uid: Name
    namespace: Name
    name: Name
    field: Text
    value: Text
    problem: Text
    fix: Text
