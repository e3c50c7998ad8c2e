"""The state of the ledger: nodes, devices, pods, gangs, queues, quotas, policy.

Only `fold.apply` makes a `State`. Every service, the command line and the simulator have one, and
differ only in the revision that they have reached.

    PodSubmitted          PodPlaced           PodBound           SharesAllocated
        │                     │                   │                     │
        ▼                     ▼                   ▼                     ▼
     pending ─────────────► placed ────────────► bound ────────────► allocated
        ▲                     │                   │                     │
        └── PlacementVoided ──┴───────────────────┘      PodGone: the pod leaves the state
                                                         PodAdopted: a pod enters bound or later

Invariants: the free amounts of a device are what it offers less the shares of its pods. `shape_key`
is the encoded shape, and pods of equal keys share one `Shape` object."""

from enum import StrEnum
from hashlib import sha256
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, field

from apportion.core.devices.cordons import Cordon
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.past_use import PastUse
from apportion.core.ledger.rules import Rules
from apportion_schemas import (
    DEVICE_PLUGIN,
    BudgetObserved,
    Configuration,
    DevicesRegistered,
    DifferenceFound,
    Host,
    NamespaceObserved,
    NodeObserved,
    NodeReported,
    NodesReserved,
    Plugin,
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
# Label of a reported node: when our agent hands out shares.
HANDS_OUT: Final = "apportion.dev/hands-out"
DRAINED: Final = "in Kubernetes (kubectl cordon)"
REFUSED_EVENTS_KEPT = 1_000  # the newest; the count is exact
DEFAULT_QUEUE: Final = "default"
shape_key = msgspec.json.Encoder(order="sorted").encode  # a shape as bytes, equal for equal shapes


class Phase(StrEnum):
    """A pod's phase, as in the diagram of this module."""

    PENDING = "pending"
    PLACED = "placed"
    BOUND = "bound"
    ALLOCATED = "allocated"


# Aliases, because reading a member from an enum class is about ten times as slow.
PENDING: Final = Phase.PENDING
PLACED: Final = Phase.PLACED
BOUND: Final = Phase.BOUND
ALLOCATED: Final = Phase.ALLOCATED


class RefusedReport(Struct, frozen=True, array_like=True):
    """A node report that the ledger refused, with the cause."""

    cause: str
    message: str
    revision: int
    time: str


class NodeState(Struct, eq=False):
    """One node: its devices ordered by index, and how much of its host is in use.

    The next placement on the node must name `fence` and `chain`. The next event about the agent's
    silence must name `presence`."""

    name: str
    devices: list[DeviceState] = []
    by_id: dict[str, DeviceState] = {}
    pods: dict[str, "PodState"] = {}
    reported: NodeReported | None = None
    reported_revision: int = 0
    registered: DevicesRegistered | None = None
    observed: NodeObserved | None = None
    host: Host = NO_HOST  # from Kubernetes, or else from the agent
    gone: bool = False  # left, or not known to Kubernetes
    cordon: str = ""
    cordons: tuple[Cordon, ...] = ()
    cpu_used_milli: int = 0
    memory_used_mib: int = 0
    extended_used: dict[str, int] = {}
    fence: int = 0  # last revision on its placement subject
    chain: str = ""  # SHA-256 of that message
    silent: str = ""  # when the agent stopped reporting, or empty
    presence: int = 0  # revision of the last event about silence
    refused: RefusedReport | None = None  # the last report, if it was refused

    @property
    def present(self) -> bool:
        """Return True if the node is in the cluster: known from a report, and not gone."""
        return not self.gone and (self.reported is not None or self.observed is not None)

    @property
    def runs(self) -> bool:
        """Return True if the node is present, and its condition `Ready` is true or not known."""
        return self.present and (self.observed is None or self.observed.ready)

    @property
    def ready(self) -> bool:
        """Return True if the node can run pods, and its agent is not silent.

        The agent may be silent if another plugin allocates the devices."""
        return self.runs and not (self.silent and not self.foreign_plugin)

    @property
    def foreign_plugin(self) -> Plugin:
        """Return whose plugin allocates this node's devices; empty if our agent does.

        Our agent takes precedence if it serves the kubelet, unless an operator names the other
        plugin in the label `DEVICE_PLUGIN`. `hami` also names a vendor's own plugin. Any other
        value of the label means our agent."""
        if self.registered is None or not self.registered.plugin:
            return ""
        plugin = self.registered.plugin
        chosen = self.observed.labels.get(DEVICE_PLUGIN) if self.observed else None
        if chosen is not None:
            named = chosen == plugin or (chosen, plugin) == ("hami", "vendor")
            return plugin if named else ""
        return "" if self.hands_out else plugin

    @property
    def hands_out(self) -> bool:
        """Return True if our agent allocates the node's devices. In shadow mode, it does not."""
        said = self.reported
        return said is not None and (said.simulated or HANDS_OUT in said.host.labels)

    @property
    def keeps_plugin(self) -> bool:
        """Return True if Apportion may use the devices that another plugin allocates.

        A plugin of HAMi or Volcano has a scheduler that could allocate the same devices. So an
        operator must allow it with the label `DEVICE_PLUGIN`. A vendor's plugin has no scheduler of
        its own: the kubelet counts its devices."""
        plugin, seen = self.foreign_plugin, self.observed
        if plugin == "vendor":
            return True
        return bool(plugin) and seen is not None and seen.labels.get(DEVICE_PLUGIN) == plugin

    @property
    def drained(self) -> bool:
        """Return True if `spec.unschedulable` is set, as by `kubectl cordon`."""
        return self.observed is not None and self.observed.unschedulable

    @property
    def cordoned(self) -> str:
        """Return why the node takes no new pods; empty if it is not cordoned."""
        return self.cordon or (DRAINED if self.drained else "")


class Placement(Struct, frozen=True, array_like=True, gc=False):
    """Where a pod is placed: the node, and its shares there.

    `rationale` is packed; see `core.ledger.rationale`."""

    node: str
    attempt: int
    shares: tuple[Share, ...]
    rationale: bytes = b""  # empty for adopted pods


class Backoff(Struct, frozen=True, array_like=True, gc=False):
    """How long a pod must wait to be placed again, because agents refused its placements."""

    failures: int  # refusals in a row
    node: str  # the last node
    until: int  # microseconds since 1970


class PodState(Struct, eq=False, array_like=True, gc=False):
    """A live pod, with the revisions of the events that brought it to each phase.

    Pods with the same `shape_key` fit the same nodes. Snapshots encode this struct as it is: a
    change of its fields or their order needs a new `snapshot.FORMAT`."""

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
    changed_revision: int = 0  # of the newest `PodChanged`
    backoff: Backoff | None = None
    terminating: bool = False  # deleted, but still running

    @property
    def uid(self) -> str:
        """Return the pod's `metadata.uid`, which all events use."""
        return self.submitted.uid

    @property
    def adopted(self) -> bool:
        """Return True if the ledger adopted the bound pod (PodAdopted) instead of placing it."""
        return self.placed_revision == self.submitted_revision

    @property
    def full_name(self) -> str:
        """Return the pod as `namespace/name`, for users."""
        return f"{self.submitted.namespace}/{self.submitted.name}"


class GroupState(Struct, eq=False):
    """A gang: its live pods by uid, and its PodGroup as Kubernetes has it, if known.

    `since` and `priority` are the gang's place in the queue: the revision of its first submission
    (or of the deletion of its PodGroup), and the highest priority of its pods. A pod that replaces
    another one inherits the place. `held` are placed pods that are not bound yet, because the last
    batch of the gang's placements is missing."""

    observed: PodGroupObserved | None = None
    pods: dict[str, PodState] = {}
    since: int = 0  # 0 until the first pod
    priority: int = 0
    held: dict[str, None] = {}  # by uid

    @property
    def min_available(self) -> int:
        """Return how many pods must be placed together."""
        return self.observed.min_available if self.observed else 1

    @property
    def together(self) -> bool:
        """Return True if the pods must be placed together, or the PodGroup is not known yet."""
        said = self.observed
        return said is None or said.min_available > 1 or bool(said.min_tasks)


class RefusedEvent(Struct, frozen=True):
    """An event that every reader skips, because it is invalid or contradicts the state."""

    revision: int
    subject: str
    reason: str


class Resize(Struct, frozen=True, array_like=True):
    """A request to resize a running pod that is not answered yet, and its revision."""

    asked: ResizeAsked
    revision: int


class IdleShare(Struct, array_like=True, gc=False):
    """How long a share has done no work, by the reports of its node.

    `since` and `until` are in microseconds since 1970, by the clock of the node. `seconds` is the
    part of this time that was measured. `memory_mib` is the peak of the last report."""

    seconds: int
    since: int
    until: int
    memory_mib: int


class Departed(Struct, frozen=True, array_like=True, gc=False):
    """What the state keeps of a dropped node, so that the node's fences continue if it returns."""

    fence: int
    chain: str
    presence: int


class State(Struct, eq=False):
    """All facts in the ledger's events up to `revision`.

    `quotas`, `budgets` and `volume_claims` are by namespace and then by name, without empty
    namespaces. `device_cordons` stay when a node no longer reports the device. `rules` may be ahead
    of `revision`."""

    revision: int = 0
    nodes: dict[str, NodeState] = {}
    pods: dict[str, PodState] = {}
    groups: dict[str, GroupState] = {}
    queues: dict[str, QueueObserved] = {}
    quotas: dict[str, dict[str, QuotaObserved]] = {}
    limits_checked: dict[str, int] = {}  # newest revision by kind and name, as in `queue/root`
    failing: dict[str, str] = {}  # pod uid: why its placement will be voided
    rejected: dict[str, PodRejected] = {}  # pods that cannot be read, by uid
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
    of_kubernetes: bool = False  # an API server decides which nodes exist
    differences: dict[str, int] = {}  # from the cluster, by kind
    differing: dict[str, DifferenceFound] = {}  # each pod's newest difference
    evictions: dict[str, PodEvicted] = {}  # of pods still placed, by uid
    nominated: dict[str, str] = {}  # pod uid: the node reserved for it while pods are evicted
    reserved: NodesReserved | None = None  # nodes for a pod or gang that has waited for long
    budgets: dict[str, dict[str, BudgetObserved]] = {}
    volume_claims: dict[str, dict[str, VolumeClaimObserved]] = {}
    namespaces: dict[str, NamespaceObserved] = {}
    resizes: dict[str, Resize] = {}  # unanswered, by pod uid
    left: dict[str, None] = {}  # empty nodes that left, in order
    departed: dict[str, Departed] = {}  # nodes dropped after that
    gangs_left: dict[str, int] = {}  # gangs without pods, in order, with their `since`
    rules: Rules = field(default_factory=Rules)
    past_use: PastUse | None = None  # None: the configuration sets no half-life
    # Shares without work, by pod uid and then by share; None: the configuration ignores them.
    idle: dict[str, dict[str, IdleShare]] | None = None


def other_owner(state: State, node: str, device: str) -> NodeState | None:
    """Return another node that reports this device, or None.

    A device may move to a node once its old node is gone or no longer reports the device."""
    owner = state.nodes.get(state.node_of_device.get(device, node))
    if owner is None or owner.name == node or owner.gone or not owner.by_id[device].present:
        return None
    return owner


def queue_of(state: State, pod: PodState) -> str:
    """Return the queue of a pod: its gang's, or else its own, or else `default`."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is not None and group.observed is not None:
        return group.observed.queue
    return pod.submitted.queue or DEFAULT_QUEUE


def spec_digest(key: bytes, pod: PodSubmitted) -> str:
    """Return a digest of a pod's shape, labels, priority, gang, model rule, task, queue, owner."""
    gang = f"{pod.group} of any model" if pod.any_model else pod.group
    rest = (sorted(pod.labels.items()), pod.priority, gang, pod.task, pod.queue, pod.owner)
    return sha256(key + repr(rest).encode()).hexdigest()[:16]


def reshape(state: State, pod: PodState, shape: Shape) -> None:
    """Give the pod another shape; pods with equal shapes share one object."""
    pod.shape_key = shape_key(shape)
    shape = state.shapes.setdefault(pod.shape_key, shape)
    pod.submitted = msgspec.structs.replace(pod.submitted, shape=shape)
