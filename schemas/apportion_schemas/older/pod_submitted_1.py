"""`PodSubmitted` as it was: no host ports, no gates, no fields of nodes, no policies of spread."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from apportion_schemas.older.pod_submitted_2 import PodSelector, PodTerms, PreferredPodTerm
from apportion_schemas.quantities import (
    CONTAINERS_MAX,
    CpuMilli,
    HostMemoryMib,
    Key,
    Labels,
    Name,
    Natural,
    Payload,
    Priority,
    Text,
)
from apportion_schemas.workload import (
    Ask,
    Containers,
    DeviceConstraints,
    DeviceWeights,
    Toleration,
)


class NodeExpression(Payload, frozen=True):
    """One match expression of a node selector term."""

    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


Term = Annotated[tuple[NodeExpression, ...], Meta(max_length=64)]


class PreferredTerm(Payload, frozen=True):
    """A preferred node affinity: a node that matches the term gains the weight."""

    weight: Annotated[int, Meta(ge=1, le=100)]
    term: Term


class NodeConstraints(Payload, frozen=True):
    """What the pod needs of a node beside devices; the fields of a Kubernetes pod spec.

    `required` is a disjunction of terms, each a conjunction of expressions.
    """

    cpu_milli: CpuMilli = 0
    memory_mib: HostMemoryMib = 0
    extended: dict[Key, Natural] = {}
    selector: Labels = {}
    required: Annotated[tuple[Term, ...], Meta(max_length=64)] = ()
    preferred: Annotated[tuple[PreferredTerm, ...], Meta(max_length=64)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=256)] = ()


class SpreadConstraint(Payload, frozen=True):
    """`spec.topologySpreadConstraints[]`: where such pods are few.

    `required` is `DoNotSchedule`: with the pod, no value of the label `topology_key` may have more
    than `max_skew` such pods above the value that has fewest. Where there are fewer than
    `min_domains` values, the fewest count as none.
    """

    pods: PodSelector
    topology_key: Key
    max_skew: Annotated[int, Meta(ge=1, le=1 << 31)] = 1
    required: bool = True
    min_domains: Annotated[int, Meta(ge=1, le=1 << 31)] = 1


class PodConstraints(Payload, frozen=True):
    """Where the pod may be in relation to other pods."""

    affinity: PodTerms = ()
    anti_affinity: PodTerms = ()
    preferred: Annotated[tuple[PreferredPodTerm, ...], Meta(max_length=128)] = ()
    spread: Annotated[tuple[SpreadConstraint, ...], Meta(max_length=64)] = ()


NO_WISHES = PodConstraints()


class Shape(Payload, frozen=True, weakref=True, gc=True):  # weak references need the collector
    """All that decides where a pod may go. Pods of one shape are one class to the scheduler.

    `node_policy` and `device_policy` are the pod's own, empty where the cluster's holds. The latter
    may be a chain with commas: `binpack`, `spread` and `numa` in the order in which devices are
    compared, `mutex` (only idle devices) and `topology-aware` (only the best linked ones).
    """

    asks: Annotated[tuple[Ask, ...], Meta(max_length=CONTAINERS_MAX)] = ()
    devices: DeviceConstraints = DeviceConstraints()
    node: NodeConstraints = NodeConstraints()
    pods: PodConstraints = NO_WISHES
    node_policy: Annotated[str, Meta(max_length=64)] = ""
    device_policy: Annotated[str, Meta(max_length=64)] = ""
    device_weights: DeviceWeights | None = None


class PodSubmitted(Payload, frozen=True):
    """A pod wants a place. `uid` is `metadata.uid`; `group` is `namespace/name` of its gang.

    `high_priority` names the containers whose tasks go first on a shared device (HAMi's
    `nvidia.com/priority: 0`); it binds the node's agent and no decision. `init_containers` and
    `containers` name those of the spec, in its order, for device plugins that count them; a pod
    that asks for no device leaves them out. `chooser` is the kube-scheduler that chooses the pod's
    node and asks our extender; the pod is then placed when that is asked for, where it says.
    `queue` is what the pod itself says; a gang's queue goes before it, and without both it is
    `default`. `borrowing` are asks of init containers that take nothing: the first container that
    holds as much, and starts when they have ended, lends them its devices.
    """

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


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default that means what silence meant."""
    return data
