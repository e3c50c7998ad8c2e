"""Structs for the fields of Kubernetes and Volcano objects that we read, named as in their APIs.

Other fields are ignored, or refused by `unsupported.py`. Invariant: the types limit the length of
every list and every name."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct, field

from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    DEADLINE_MAX_S,
    LEVELS_MAX,
    NAME_MAX,
    PARTS_MAX,
    Key,
    Natural,
    Priority,
    Text,
)

REPLICAS_MAX = 10_000
MEMBERS_MAX = 10_000  # of one HyperNode

S = TypeVar("S")
Replicas = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class Kube(Struct, frozen=True, rename="camel", kw_only=True):
    """Base class of all structs for Kubernetes objects and their parts."""


class OwnerReference(Kube, frozen=True):
    kind: Text
    name: Text
    controller: bool = False


class Metadata(Kube, frozen=True):
    """The `metadata` of an object or template; a template has no name."""

    name: Text = ""
    namespace: Text = "default"
    annotations: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    owner_references: list[OwnerReference] = []


class Named(Kube, frozen=True):
    """The part of an object that every kind has."""

    metadata: Metadata


class Object(Kube, Generic[S], frozen=True):
    """A Kubernetes object whose `spec` has the type `S`."""

    metadata: Metadata
    spec: S


class Resources(Kube, frozen=True):
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}


class Port(Kube, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: Text = field(name="hostIP", default="")
    protocol: Text = "TCP"


class EnvVar(Kube, frozen=True):
    """One entry of `env[]`; entries with `valueFrom` are read without a value."""

    name: str = ""
    value: str = ""


class ContainerSpec(Kube, frozen=True):
    name: Text
    resources: Resources = Resources()
    restart_policy: Text = ""
    ports: Annotated[list[Port], Meta(max_length=256)] = []
    env: Annotated[list[EnvVar], Meta(max_length=4096)] = []


class SchedulingGate(Kube, frozen=True):
    name: Text


class Expression(Kube, frozen=True):
    key: Key
    operator: Text
    values: Annotated[list[Text], Meta(max_length=256)] = []


class NodeTerm(Kube, frozen=True):
    match_expressions: Annotated[list[Expression], Meta(max_length=64)] = []
    match_fields: Annotated[list[Expression], Meta(max_length=64)] = []


class NodeTerms(Kube, frozen=True):
    node_selector_terms: Annotated[list[NodeTerm], Meta(min_length=1, max_length=64)]


class PreferredNode(Kube, frozen=True):
    weight: Annotated[int, Meta(ge=1, le=100)]
    preference: NodeTerm


class NodeAffinity(Kube, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNode], Meta(max_length=64)
    ] = []


class LabelSelector(Kube, frozen=True):
    match_labels: dict[str, Any] = {}
    match_expressions: Annotated[list[Expression], Meta(max_length=64)] = []


class PodAffinityTerm(Kube, frozen=True):
    topology_key: Annotated[Key, Meta(min_length=1)]
    label_selector: LabelSelector | None = None
    namespaces: Annotated[list[Text], Meta(max_length=256)] = []
    namespace_selector: LabelSelector | None = None
    match_label_keys: Annotated[list[Text], Meta(max_length=64)] = []
    mismatch_label_keys: Annotated[list[Text], Meta(max_length=64)] = []


class WeightedPodAffinityTerm(Kube, frozen=True):
    weight: Annotated[int, Meta(ge=1, le=100)]
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Kube, frozen=True):
    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], Meta(max_length=64)
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], Meta(max_length=64)
    ] = []


class TopologySpread(Kube, frozen=True):
    max_skew: Annotated[int, Meta(ge=1, le=1 << 31)]
    topology_key: Annotated[Key, Meta(min_length=1)]
    when_unsatisfiable: Text
    label_selector: LabelSelector | None = None
    min_domains: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    node_affinity_policy: Text = "Honor"
    node_taints_policy: Text = "Ignore"
    match_label_keys: Annotated[list[Text], Meta(max_length=64)] = []


class Affinity(Kube, frozen=True):
    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class TolerationSpec(Kube, frozen=True):
    key: Key = ""
    operator: Text = ""
    value: Text = ""
    effect: Text = ""


class ClaimSource(Kube, frozen=True):
    claim_name: Annotated[Text, Meta(min_length=1)]


class GoogleDisk(Kube, frozen=True):
    pd_name: Text = ""
    read_only: bool = False


class AmazonDisk(Kube, frozen=True):
    volume_id: Text = field(default="", name="volumeID")


class IscsiTarget(Kube, frozen=True):
    iqn: Text = ""
    read_only: bool = False


class CephImage(Kube, frozen=True):
    monitors: Annotated[list[Text], Meta(max_length=64)] = []
    pool: Text = "rbd"
    image: Text = ""
    read_only: bool = False


class Volume(Kube, frozen=True):
    """An entry of `volumes`, with the sources that affect placement."""

    name: Text = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: GoogleDisk | None = None
    aws_elastic_block_store: AmazonDisk | None = None
    iscsi: IscsiTarget | None = None
    rbd: CephImage | None = None


class SchedulingGroup(Kube, frozen=True):
    pod_group_name: Text = ""


class PodSpec(Kube, frozen=True):
    containers: Annotated[list[ContainerSpec], Meta(min_length=1, max_length=CONTAINERS_MAX)]
    init_containers: Annotated[list[ContainerSpec], Meta(max_length=CONTAINERS_MAX)] = []
    node_selector: dict[str, Any] = {}
    affinity: Affinity = Affinity()
    tolerations: Annotated[list[TolerationSpec], Meta(max_length=256)] = []
    topology_spread_constraints: Annotated[list[TopologySpread], Meta(max_length=64)] = []
    scheduler_name: Text = ""
    priority: Priority | None = None
    priority_class_name: Text = ""
    overhead: dict[str, Any] = {}
    resources: Resources | None = None
    host_network: bool = False
    scheduling_gates: Annotated[list[SchedulingGate], Meta(max_length=256)] = []
    volumes: Annotated[list[Volume], Meta(max_length=256)] = []
    preemption_policy: Literal["", "Never", "PreemptLowerPriority"] = ""
    scheduling_group: SchedulingGroup | None = None
    active_deadline_seconds: Annotated[int, Meta(ge=1, le=DEADLINE_MAX_S)] | None = None


class PodTemplate(Kube, frozen=True):
    spec: PodSpec
    metadata: Metadata = Metadata()


class JobGangPolicy(Kube, frozen=True):
    min_count: Replicas | None = None


class JobSchedulingPolicy(Kube, frozen=True):
    gang: JobGangPolicy | None = None


class TopologyConstraint(Kube, frozen=True):
    key: Annotated[Key, Meta(min_length=1)]


class SchedulingConstraints(Kube, frozen=True):
    topology: Annotated[list[TopologyConstraint], Meta(max_length=1)] = []

    @property
    def level(self) -> str:
        """Return the label key of the level in which all pods must be; empty if there is none."""
        return self.topology[0].key if self.topology else ""


class JobScheduling(Kube, frozen=True):
    """How the pods of a Job are scheduled together, from Kubernetes 1.37."""

    scheduling_policy: JobSchedulingPolicy = JobSchedulingPolicy()
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()


class JobSpec(Kube, frozen=True):
    template: PodTemplate
    parallelism: Replicas = 1
    completions: Natural | None = None
    suspend: bool = False
    scheduling: JobScheduling = JobScheduling()


class NetworkTopology(Kube, frozen=True):
    """Within which HyperNodes the pods of a Volcano Job or PodGroup must or should be."""

    mode: Literal["", "hard", "soft"] = ""
    highest_tier_allowed: Natural | None = None
    highest_tier_name: Annotated[str, Meta(max_length=NAME_MAX)] = ""


class ExactMatch(Kube, frozen=True):
    name: Text


class RegexMatch(Kube, frozen=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=256)]


class MemberSelector(Kube, frozen=True):
    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMember(Kube, frozen=True):
    type: Literal["Node", "HyperNode"]
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(Kube, frozen=True):
    tier: Natural = 0
    tier_name: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    members: Annotated[list[HyperNodeMember], Meta(max_length=MEMBERS_MAX)] = []


class PartitionPolicy(Kube, frozen=True):
    total_partitions: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    partition_size: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    min_partitions: Replicas = 0
    network_topology: NetworkTopology | None = None


class SubGroupPolicy(Kube, frozen=True):
    sub_group_size: Replicas = 1
    min_sub_groups: Replicas = 0
    label_selector: LabelSelector | None = None
    match_label_keys: Annotated[list[Key], Meta(max_length=64)] = []
    network_topology: NetworkTopology | None = None


class VolcanoTask(Kube, frozen=True):
    template: PodTemplate
    name: Text = ""
    replicas: Replicas = 1
    min_available: Replicas | None = None
    partition_policy: PartitionPolicy | None = None


class VolcanoVolume(Kube, frozen=True):
    volume_claim_name: Text = ""


class VolcanoJobSpec(Kube, frozen=True):
    tasks: Annotated[list[VolcanoTask], Meta(min_length=1, max_length=256)]
    min_available: Replicas = 0
    queue: Text = "default"
    priority_class_name: Text = ""
    scheduler_name: Text = ""
    network_topology: NetworkTopology | None = None
    volumes: Annotated[list[VolcanoVolume], Meta(max_length=256)] = []


class PodGroupSpec(Kube, frozen=True):
    network_topology: NetworkTopology | None = None
    sub_group_policy: Annotated[list[SubGroupPolicy], Meta(max_length=PARTS_MAX)] = []
    min_member: Natural = 1
    min_task_member: dict[str, Any] = {}
    queue: Text = "default"
    priority_class_name: Text = ""


class PodGroup(Kube, frozen=True):
    """A Volcano PodGroup, of API version `scheduling.volcano.sh/v1beta1`."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()


class CoschedulingSpec(Kube, frozen=True):
    min_member: Natural = 1


class CoschedulingPodGroup(Kube, frozen=True):
    """A PodGroup of API version `scheduling.x-k8s.io/v1alpha1`."""

    metadata: Metadata
    spec: CoschedulingSpec = CoschedulingSpec()


class KaiTopology(Kube, frozen=True):
    topology: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    required_topology_level: Key = ""
    preferred_topology_level: Key = ""


class KaiSubGroup(Kube, frozen=True):
    name: Text
    min_member: Natural | None = None
    parent: Text = ""
    topology_constraint: KaiTopology = KaiTopology()


class KaiGroupSpec(Kube, frozen=True):
    topology_constraint: KaiTopology = KaiTopology()
    min_member: Natural | None = None
    min_sub_group: Natural | None = None
    queue: Text = ""
    priority_class_name: Text = ""
    sub_groups: Annotated[list[KaiSubGroup], Meta(max_length=PARTS_MAX)] = []


class KaiLevel(Kube, frozen=True):
    node_label: Key
    alias: Key = ""


class KaiTopologySpec(Kube, frozen=True):
    levels: Annotated[list[KaiLevel], Meta(min_length=1, max_length=LEVELS_MAX)]


class GangPolicy(Kube, frozen=True):
    min_count: Natural = 1


class SchedulingPolicy(Kube, frozen=True):
    gang: GangPolicy | None = None


class KubernetesGroupSpec(Kube, frozen=True):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    priority: Priority | None = None
    priority_class_name: Text = ""
    disruption_mode: dict[str, Any] | str | None = None  # v1alpha2 has text

    @property
    def whole(self) -> bool:
        """Return True if the pods may only be evicted together."""
        return self.disruption_mode == "PodGroup" or "all" in (self.disruption_mode or "")


Pod = Object[PodSpec]
Job = Object[JobSpec]
VolcanoJob = Object[VolcanoJobSpec]  # `batch.volcano.sh/v1alpha1`
# of `scheduling.k8s.io`, all versions since Kubernetes 1.36
KubernetesPodGroup = Object[KubernetesGroupSpec]
HyperNode = Object[HyperNodeSpec]  # `topology.volcano.sh/v1alpha1`
KaiTopologyObject = Object[KaiTopologySpec]  # `kai.scheduler/v1alpha1`
KaiPodGroup = Object[KaiGroupSpec]  # `scheduling.run.ai/v2alpha2`
