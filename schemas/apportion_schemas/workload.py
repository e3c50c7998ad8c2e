"""Submitted pods, in terms that do not depend on the dialect of their manifest.

The writer (the watcher, or the command line without Kubernetes) has already resolved resource
names, units and defaults. `dialect` is the dialect of the manifest, in which the annotations for
the device plugin are written."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    COUNT_MAX,
    DEADLINE_MAX_S,
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
    NoticeSeconds,
    Payload,
    Percent,
    Priority,
    Text,
    Weight,
)

Names = Annotated[tuple[Name, ...], Meta(max_length=256)]
Containers = Annotated[tuple[Name, ...], Meta(max_length=CONTAINERS_MAX)]
# Environment variables of a container that configure how HAMi-core limits it.
Control = Literal[
    "ACTIVE_OOM_KILLER",
    "CUDA_DISABLE_CONTROL",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
    "LIBCUDA_LOG_LEVEL",
]
Controls = Annotated[
    dict[Name, dict[Control, Annotated[str, Meta(max_length=64)]]], Meta(max_length=CONTAINERS_MAX)
]


class Ask(Payload, frozen=True):
    """The device request of one container: `count` different devices, and an amount of each.

    At most one of `memory_mib` and `memory_percent` is set; without either, all memory is meant.
    `cores` is percent of the device's compute; at 100 the device is not shared. If `cap_memory`, an
    amount above the device's size requests the whole device (volcano.sh/vgpu-memory)."""

    container: Name
    family: Name  # as in the device catalogue
    count: Count = 1
    memory_mib: MemoryMib | None = None
    memory_percent: Percent | None = None
    cores: Percent = 0
    cap_memory: bool = False
    profile: Annotated[str, Meta(max_length=32)] = ""  # the exact name of a MIG profile
    init: bool = False

    @property
    def whole(self) -> bool:
        """Return True if the container requests whole devices that it does not share."""
        return (
            self.cores == WHOLE and self.memory_mib is None and self.memory_percent in (None, WHOLE)
        )


# Whose device plugin allocates a node's devices: another system's, the vendor's own, which reads no
# annotation, or empty for Apportion's agent.
Plugin = Literal["", "hami", "volcano", "vendor"]


class DeviceConstraints(Payload, frozen=True):
    """Which devices a pod accepts; an empty tuple accepts all.

    `plugin` is the system whose device plugin reads the annotations that we write on the pod."""

    modes: tuple[Mode, ...] = ()
    use_types: Names = ()
    nouse_types: Names = ()
    use_ids: Names = ()
    nouse_ids: Names = ()
    indexes: Annotated[tuple[Index, ...], Meta(max_length=COUNT_MAX)] = ()
    numa_bind: bool = False
    plugin: Plugin = ""


class Toleration(Payload, frozen=True):
    """One entry of a pod's `spec.tolerations[]`."""

    key: Key = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Text = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class NodeExpression(Payload, frozen=True):
    """One match expression of a node selector term.

    If `of_field`, the key is the field `metadata.name` (`matchFields`), not a label."""

    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()
    of_field: bool = False


Term = Annotated[tuple[NodeExpression, ...], Meta(max_length=64)]


class PreferredTerm(Payload, frozen=True):
    """One term of preferred node affinity. A matching node gets its weight as points."""

    weight: Annotated[int, Meta(ge=1, le=100)]
    term: Term


class HostPort(Payload, frozen=True):
    """A container's `ports[].hostPort`; an empty `ip` means every address of the node."""

    port: Annotated[int, Meta(ge=1, le=65535)]
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    ip: Annotated[str, Meta(max_length=64)] = ""


class Disk(Payload, frozen=True):
    """A disk in a pod's spec. Pods on one node share the disk only if all mount it read-only.

    `name` begins with the disk's kind, as in `iscsi/iqn.2026-01.org:disk`."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    read_only: bool = False


class NodeConstraints(Payload, frozen=True):
    """What a pod requires of its node, apart from devices; fields as in the pod's spec.

    A node must match all expressions of at least one term in `required`."""

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
    """One match expression for labels of pods or namespaces."""

    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


class PodSelector(Payload, frozen=True):
    """Selects the pods whose labels match every expression, in the selected namespaces.

    The selected namespaces are the listed `namespaces`, and each namespace whose labels match all
    expressions of `by_label` (`namespaceSelector`). If both lists are empty, all namespaces are
    selected."""

    expressions: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()
    namespaces: Names = ()
    by_label: Annotated[tuple[LabelExpression, ...], Meta(max_length=64)] = ()


class PodTerm(Payload, frozen=True):
    """An affinity term. It matches nodes in the same `topology_key` domain as a selected pod."""

    pods: PodSelector
    topology_key: Key


class PreferredPodTerm(Payload, frozen=True):
    """A preferred affinity term with its weight per selected pod; below 0 for anti-affinity."""

    weight: Annotated[int, Meta(ge=-100, le=100)]
    term: PodTerm


class SpreadConstraint(Payload, frozen=True):
    """One of `spec.topologySpreadConstraints[]`: spread the selected pods over domains.

    A domain is a value of the label `topology_key`. If `required` (`DoNotSchedule`), no domain may
    have more than `max_skew` selected pods above the lowest count, with this pod included. The
    lowest count is 0 if there are fewer than `min_domains` domains."""

    pods: PodSelector
    topology_key: Key
    max_skew: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    required: bool = True
    min_domains: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    any_node: bool = False  # `nodeAffinityPolicy: Ignore`
    untainted: bool = False  # `nodeTaintsPolicy: Honor`


PodTerms = Annotated[tuple[PodTerm, ...], Meta(max_length=64)]


class PodConstraints(Payload, frozen=True):
    """A pod's affinity, anti-affinity and topology spread constraints."""

    affinity: PodTerms = ()
    anti_affinity: PodTerms = ()
    preferred: Annotated[tuple[PreferredPodTerm, ...], Meta(max_length=128)] = ()
    spread: Annotated[tuple[SpreadConstraint, ...], Meta(max_length=64)] = ()


NO_WISHES = PodConstraints()  # shared by most pods, so that a check of identity is enough


class DeviceWeights(Payload, frozen=True):
    """How much each resource counts in a device's load (`hami.io/device-scoring-weights`)."""

    slots: Weight
    cores: Weight
    memory: Weight


class Shape(Payload, frozen=True, weakref=True, gc=True):  # weak references need the collector
    """Everything about a pod that decides where it may be placed; equal pods have one shape.

    `node_policy` and `device_policy` are the pod's own; empty means the cluster's policy. A device
    policy may be a chain of names with commas, such as `mutex,binpack`."""

    asks: Annotated[tuple[Ask, ...], Meta(max_length=CONTAINERS_MAX)] = ()
    devices: DeviceConstraints = DeviceConstraints()
    node: NodeConstraints = NodeConstraints()
    pods: PodConstraints = NO_WISHES
    node_policy: Annotated[str, Meta(max_length=64)] = ""
    device_policy: Annotated[str, Meta(max_length=64)] = ""
    device_weights: DeviceWeights | None = None


@event("workload.{uid}", "watcher", born=6)
class PodSubmitted(Payload, frozen=True):
    """A pod is submitted and waits to be placed.

    Each of the asks in `borrowing` is for devices of another container, which does not run at the
    same time."""

    uid: Name  # `metadata.uid`
    namespace: Name
    name: Name
    shape: Shape
    dialect: Name
    labels: Labels = {}
    priority: Priority = 0
    group: Text = ""  # namespace and name of the gang
    task: Text = ""
    owner: Text = ""
    high_priority: Containers = ()  # HAMi's `nvidia.com/priority: 0`; for the agent
    init_containers: Containers = ()  # in the order of the spec
    containers: Containers = ()  # both are empty without device requests
    chooser: Text = ""  # the kube-scheduler that chooses the node
    queue: Name = ""  # overridden by the gang's queue
    borrowing: Annotated[tuple[Ask, ...], Meta(max_length=CONTAINERS_MAX)] = ()
    gates: Names = ()  # `spec.schedulingGates`
    preempts: bool = True  # False: `preemptionPolicy: Never`
    evictable: bool = True  # False: `volcano.sh/preemptable: "false"`
    volume_claims: Names = ()  # also of generic ephemeral volumes
    controls: Controls = {}  # HAMi-core's environment variables
    any_model: bool = False  # `apportion.dev/gang-models: any`: not restricted to its gang's model
    notice_s: NoticeSeconds = 0  # `apportion.dev/eviction-notice`
    checkpoint_s: Natural = 0  # `apportion.dev/checkpoint-every`; 0: the pod writes no checkpoints
    # `spec.activeDeadlineSeconds`; 0: the pod may run for any time
    deadline_s: Annotated[int, Meta(ge=0, le=DEADLINE_MAX_S)] = 0


@event("workload.{uid}", "watcher", born=2)
class PodChanged(Payload, frozen=True):
    """A live pod changed since its last PodSubmitted or PodChanged event.

    The event has everything that may change: labels, gates (only ever removed), and the CPU and
    memory that `pods/resize` resizes in place. `terminating` is True if the pod is being deleted
    but still runs."""

    uid: Name
    labels: Labels = {}
    gates: Names = ()
    cpu_milli: CpuMilli = 0
    memory_mib: HostMemoryMib = 0
    terminating: bool = False


@event("workload.{uid}", "watcher")
class PodGone(Payload, frozen=True):
    """A pod finished, failed, was deleted or was evicted, so its resources are free."""

    uid: Name
    reason: Text = ""


@event("workload.{uid}", "watcher")
class PodRejected(Payload, frozen=True):
    """The pod's manifest is invalid, so the pod is not placed until the manifest is fixed."""

    uid: Name
    namespace: Name
    name: Name
    field: Text  # a path in the manifest
    value: Text
    problem: Text
    fix: Text
