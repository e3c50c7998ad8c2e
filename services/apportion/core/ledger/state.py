"""What the ledger says is so: nodes, devices, pods, gangs, queues, quotas and the policy.

A `State` is made by `fold.apply` and by nothing else; every service, the command line and the
simulator hold one and differ only in the revision that they have reached.

    PodSubmitted          PodPlaced           PodBound           SharesAllocated
        │                     │                   │                     │
        ▼                     ▼                   ▼                     ▼
     pending ─────────────► placed ────────────► bound ────────────► allocated
        ▲                     │                   │                     │
        └── PlacementVoided ──┴───────────────────┘      PodGone: the pod leaves the state
                                                         PodAdopted: a pod comes in bound or later

Invariants: what a device has free is what it offers less the shares of the pods placed on it.
`shape_key` of a pod is the bytes of its shape, and pods of equal keys have the same object: one
shape for all pods that any node would treat alike."""

from enum import StrEnum
from hashlib import sha256
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, field

from apportion.core.devices.cordons import Cordon
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.rules import Rules
from apportion_schemas import (
    BudgetObserved,
    Configuration,
    DifferenceFound,
    Host,
    NamespaceObserved,
    NodeObserved,
    NodeReported,
    PodEvicted,
    PodGroupObserved,
    PodRefused,
    PodRejected,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaObserved,
    ResizeAsked,
    Shape,
    Share,
    VolumeClaimObserved,
)

NO_HOST = Host(cpu_milli=0, memory_mib=0, pods=0)
HANDS_OUT: Final = "apportion.dev/hands-out"
"""Label of a node's report: when our agent hands out the environment of its containers."""
DEVICE_PLUGIN: Final = "apportion.dev/device-plugin"
"""Label of an observed node: the system whose device plugin registered its devices."""
DRAINED: Final = "in Kubernetes (kubectl cordon)"
REFUSED_EVENTS_KEPT = 1_000  # the newest; the count is exact
DEFAULT_QUEUE: Final = "default"
shape_key = msgspec.json.Encoder(order="sorted").encode
"""A shape as bytes, equal for equal ones."""


class Phase(StrEnum):
    """Where a pod is in its life."""

    PENDING = "pending"
    PLACED = "placed"
    BOUND = "bound"
    ALLOCATED = "allocated"


PENDING: Final = Phase.PENDING
PLACED: Final = Phase.PLACED
BOUND: Final = Phase.BOUND
ALLOCATED: Final = Phase.ALLOCATED
"""The members themselves: to ask the class for one takes Python as long as ten other attributes."""


class RefusedReport(Struct, frozen=True, array_like=True):
    """What an intake did not take of a node's agent, and when that was said."""

    cause: str
    message: str
    revision: int
    time: str


class NodeState(Struct, eq=False):
    """One node: its devices in the order of their index, and what of its host is free.

    `host` is what Kubernetes says of it, and where it says nothing, what its agent does. `gone`: it
    left the cluster, or was never a node of Kubernetes although an agent reports it. `fence` is the
    last revision on the node's placement subject and `chain` the SHA-256 of that message: the next
    placement expects the one and names the other. `silent` is when its agent was found silent,
    empty while it is heard; `presence` is the revision at which that was last told, and the fence
    for telling it anew. `refused` is what was last refused of its agent, until a report of the node
    is taken."""

    name: str
    devices: list[DeviceState] = []
    by_id: dict[str, DeviceState] = {}
    pods: dict[str, "PodState"] = {}
    reported: NodeReported | None = None
    reported_revision: int = 0
    observed: NodeObserved | None = None
    host: Host = NO_HOST
    gone: bool = False
    cordon: str = ""
    cordons: tuple[Cordon, ...] = ()
    cpu_used_milli: int = 0
    memory_used_mib: int = 0
    extended_used: dict[str, int] = {}
    fence: int = 0
    chain: str = ""
    silent: str = ""
    presence: int = 0
    refused: RefusedReport | None = None

    @property
    def present(self) -> bool:
        """Whether the node is in the cluster: somebody told of it, and nobody that it left."""
        return not self.gone and (self.reported is not None or self.observed is not None)

    @property
    def runs(self) -> bool:
        """Whether the node is there and Kubernetes, if it tells of it, says that it can run pods:
        its condition `Ready`."""
        return self.present and (self.observed is None or self.observed.ready)

    @property
    def ready(self) -> bool:
        """Whether it runs pods and its agent, where it has one, hands out shares."""
        return self.runs and not self.silent

    @property
    def foreign_plugin(self) -> str:
        """The system whose device plugin hands out this node's devices, or empty if none does.

        Source: the label `DEVICE_PLUGIN`, which the watcher sets; our agent overrules it where it
        hands out shares itself."""
        if self.observed is None or self.reported is None or self.reported.simulated:
            return ""
        if HANDS_OUT in self.reported.host.labels:
            return ""
        return self.observed.labels.get(DEVICE_PLUGIN, "")

    @property
    def drained(self) -> bool:
        """Whether Kubernetes takes no new pods there: `spec.unschedulable`, as `kubectl cordon`."""
        return self.observed is not None and self.observed.unschedulable

    @property
    def cordoned(self) -> str:
        """Why it takes no new pods, in words: a person's reason, or that Kubernetes says so."""
        return self.cordon or (DRAINED if self.drained else "")


class Placement(Struct, frozen=True, array_like=True, gc=False):
    """Where a pod is and what it holds there.

    `rationale` is why, packed: `core.ledger.rationale` reads it. It is empty where nobody decided,
    and where the placement is assumed for the length of one decision."""

    node: str
    attempt: int
    shares: tuple[Share, ...]
    rationale: bytes = b""


class Backoff(Struct, frozen=True, array_like=True, gc=False):
    """That agents refused the pod's placements: how often in a row, the last node, and until when
    the pod waits for its next placement, in microseconds since 1970."""

    failures: int
    node: str
    until: int


class PodState(Struct, eq=False, array_like=True, gc=False):
    """One live pod. Revisions are those of the events that brought it to each phase, and of the
    newest `PodChanged`. `terminating`: the pod is being deleted and still runs.

    `shape_key` is the shape as bytes: equal for pods that any node would treat alike. Snapshots
    hold a pod as it stands here: other fields, or another order, are another `snapshot.FORMAT`."""

    submitted: PodSubmitted
    shape_key: bytes
    submitted_revision: int
    submitted_time: str
    attempt: int = 1
    phase: Phase = Phase.PENDING
    placement: Placement | None = None
    placed_revision: int = 0
    placed_time: str = ""
    bound_revision: int = 0
    allocated_revision: int = 0
    refusal: PodRefused | None = None
    refused_revision: int = 0
    last_failure: str = ""
    changed_revision: int = 0
    backoff: Backoff | None = None
    terminating: bool = False

    @property
    def uid(self) -> str:
        """`metadata.uid` of the pod, by which all events name it."""
        return self.submitted.uid

    @property
    def adopted(self) -> bool:
        """Whether it was found where it is: it may have lived in this ledger before."""
        return self.placed_revision == self.submitted_revision

    @property
    def full_name(self) -> str:
        """The pod as `namespace/name`, for people."""
        return f"{self.submitted.namespace}/{self.submitted.name}"


class GroupState(Struct, eq=False):
    """A gang: what was declared of it, once that is known, and its live pods by uid."""

    observed: PodGroupObserved | None = None
    pods: dict[str, PodState] = {}

    @property
    def min_available(self) -> int:
        """How many pods must hold places together."""
        return self.observed.min_available if self.observed else 1

    @property
    def together(self) -> bool:
        """Whether its pods hold places together or not at all; nobody knows before it is told."""
        said = self.observed
        return said is None or said.min_available > 1 or bool(said.min_tasks)


class RefusedEvent(Struct, frozen=True):
    """An event that no reader applies: where it stands and why it is refused."""

    revision: int
    subject: str
    reason: str


class Resize(Struct, frozen=True, array_like=True):
    """What a person wants of a pod that runs, and the revision at which that was said."""

    asked: ResizeAsked
    revision: int


class Departed(Struct, frozen=True, array_like=True, gc=False):
    """Where the fences of a forgotten node ended; the fields are those of `NodeState`."""

    fence: int
    chain: str
    presence: int


class State(Struct, eq=False):
    """Everything that the ledger says up to `revision`.

    `quotas` are by namespace, which is there while it has one, and by name. `failing` are
    placements that came to nothing and wait to be voided, by pod uid, with the cause. `rejected`
    are pods that cannot be read, by uid. `device_cordons` outlive the report of the device.
    `differences` counts by kind what comparisons with the cluster found; `differing` is the newest
    of each live pod, by uid. `of_kubernetes`: an API server says which nodes there are. `evictions`
    are of pods that are to go and still hold their places, by uid. `nominated` is the node, by uid
    of the pending pod for which room is made there. `budgets` and `volume_claims` are as `quotas`.
    `resizes` are wishes that nobody has answered, by pod uid. `left` are nodes that left the
    cluster and have no pods and no cordons, in that order, and `departed` those that are forgotten
    since (see `core.ledger.departures`). `rules` may be known further than `revision`."""

    revision: int = 0
    nodes: dict[str, NodeState] = {}
    pods: dict[str, PodState] = {}
    groups: dict[str, GroupState] = {}
    queues: dict[str, QueueObserved] = {}
    quotas: dict[str, dict[str, QuotaObserved]] = {}
    failing: dict[str, str] = {}
    rejected: dict[str, PodRejected] = {}
    node_of_device: dict[str, str] = {}
    device_cordons: dict[str, tuple[Cordon, ...]] = {}
    policy: PolicyChanged = field(default_factory=lambda: PolicyChanged(by="default"))
    policy_revision: int = 0
    prices: PricesLearnt | None = None
    prices_revision: int = 0
    configuration: Configuration = field(default_factory=Configuration)
    configuration_revision: int = 0
    shapes: WeakValueDictionary[bytes, Shape] = field(default_factory=WeakValueDictionary)
    refused_events: list[RefusedEvent] = []
    refused_count: int = 0
    released_count: int = 0
    of_kubernetes: bool = False
    differences: dict[str, int] = {}
    differing: dict[str, DifferenceFound] = {}
    evictions: dict[str, PodEvicted] = {}
    nominated: dict[str, str] = {}
    budgets: dict[str, dict[str, BudgetObserved]] = {}
    volume_claims: dict[str, dict[str, VolumeClaimObserved]] = {}
    namespaces: dict[str, NamespaceObserved] = {}
    resizes: dict[str, Resize] = {}
    left: dict[str, None] = {}
    departed: dict[str, Departed] = {}
    rules: Rules = field(default_factory=Rules)


def other_owner(state: State, node: str, device: str) -> NodeState | None:
    """The other node of the cluster that reports this device.

    A device is on one node; it may move once that node is gone or reports without it."""
    owner = state.nodes.get(state.node_of_device.get(device, node))
    if owner is None or owner.name == node or owner.gone or not owner.by_id[device].present:
        return None
    return owner


def queue_of(state: State, pod: PodState) -> str:
    """The queue of a pod: its gang's, else the one that it names, else `default`."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is not None and group.observed is not None:
        return group.observed.queue
    return pod.submitted.queue or DEFAULT_QUEUE


def spec_digest(key: bytes, pod: PodSubmitted) -> str:
    """A digest of what a pod of that shape key asks for, its labels, gang and queue."""
    rest = (sorted(pod.labels.items()), pod.priority, pod.group, pod.task, pod.queue, pod.owner)
    return sha256(key + repr(rest).encode()).hexdigest()[:16]


def reshape(state: State, pod: PodState, shape: Shape) -> None:
    """Let the pod be of another shape from now on."""
    pod.shape_key = shape_key(shape)
    shape = state.shapes.setdefault(pod.shape_key, shape)
    pod.submitted = msgspec.structs.replace(pod.submitted, shape=shape)
