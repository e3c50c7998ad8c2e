"""The answers of the read API, which the gateway sends and the command line reads.

Field names contain the units. Every field is sent, even if it has its default value, except in
parts of events (asks, shares, scores). Invariant: all values but `RevisionAnswer.frozen` are from
the state."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

import apportion_schemas as schemas
from apportion.core.answers.visibility import (
    EachItem,
    Everyone,
    Made,
    Names,
    Namespace,
    OrEmpty,
    OrNone,
    OwnItems,
    People,
    Readers,
    Rule,
    Seen,
)

T = TypeVar("T")
UNKNOWN_DEVICE: Final = "unknown-device"
AMBIGUOUS_DEVICE: Final = "ambiguous-device"
UNKNOWN_PATH: Final = "unknown-path"
NO_PRICES: Final = "no-prices"


def fields_of(source: object, names: str) -> dict[str, Any]:
    """Return the attributes of `source` that `names` lists, to fill fields of the same names.

    A call takes a few microseconds, so answers that occur by the thousand do not use it."""
    return {name: getattr(source, name) for name in names.split()}


class Answer(Struct, frozen=True):
    """Base class of all answers; `time` is set only in answers about a requested point in time."""


class ErrorAnswer(Answer, frozen=True):
    """Why a request failed: the message, the parameter at fault, and the fix."""

    error: People[str]
    field: Everyone[str] = ""
    fix: People[str] = ""
    code: Everyone[str] = ""  # unknown-device, ambiguous-device, unknown-path or no-prices
    rest: People[str] = ""  # the error without its leading field name


class RevisionAnswer(Answer, frozen=True):
    """The ledger revision up to which the gateway knows the state."""

    revision: Everyone[int]
    time: Everyone[str] = ""
    frozen: Everyone[str] = ""  # why no pod can be placed, as a key of `FREEZES`


class SummaryAnswer(Answer, frozen=True):
    """The cluster at a glance: nodes, devices, memory, and the number of pods in each phase."""

    revision: Everyone[int]
    policy: Everyone[schemas.PolicyChanged]
    phases: Everyone[dict[str, int]] = {}  # a pending pod that was refused is `refused`
    nodes: Everyone[int] = 0
    nodes_ready: Everyone[int] = 0
    devices: Everyone[int] = 0
    devices_open: Everyone[int] = 0
    memory_mib: Everyone[int] = 0  # of all present devices
    memory_free_mib: Everyone[int] = 0
    refused_events: Everyone[int] = 0  # events that every reader skips
    time: Everyone[str] = ""


class ConfigurationAnswer(Answer, frozen=True):
    """The current configuration and the revision that set it, or 0 if none was ever set."""

    revision: Everyone[int]
    configuration_revision: Everyone[int]
    configuration: schemas.Configuration
    time: Everyone[str] = ""


class FailedDevice(Answer, frozen=True):
    """A failed device that a pod uses, and when it failed, if known."""

    device: Everyone[str]
    reason: People[str]
    revision: Everyone[int] = 0  # when it failed
    time: Everyone[str] = ""


# Why no start can be forecast: too few similar starts, too few of the pods that waited as long have
# started, no node could run the pod, it waits for a limit of its queue or namespace, for a volume
# or the rest of its gang, for its scheduling gates or another scheduler, it requests no device, or
# each node is closed to it (cordoned, tainted, not ready).
StartUnknown = Literal[
    "little-history", "few-started", "never", "limit", "not-ready", "gated", "other-scheduler",
    "no-devices", "nodes-closed",
]  # fmt: skip


class StartForecast(Answer, frozen=True):
    """When a pending pod should start, as of the newest event, or why that is unknown.

    The pod starts between `earliest` and `latest` with the given probability; all three times are
    empty if the start is unknown. `within` of the last `judged` forecasts were right. Each of these
    was made when the scheduler first refused its pod."""

    as_of: Everyone[str]
    since: Everyone[str] = ""  # when the events begin from which this gateway has learned
    earliest: Everyone[str] = ""
    median: Everyone[str] = ""
    latest: Everyone[str] = ""
    probability: Everyone[float] = 0.0
    similar: Everyone[int] = 0  # past starts, each counted by how similar its situation was
    judged: Everyone[int] = 0  # newest forecasts whose pod has started, or whose `latest` is over
    within: Everyone[int] = 0  # those whose pod started between `earliest` and `latest`
    unknown: Everyone[StartUnknown | Literal[""]] = ""


class PodAnswer(Answer, frozen=True):
    """One live pod. A pod whose manifest cannot be read has the phase `rejected`."""

    namespace: Namespace
    name: str
    uid: str
    phase: Everyone[str]
    submitted_revision: Everyone[int] = 0
    submitted_time: Everyone[str] = ""
    dialect: str = ""
    priority: int = 0
    group: str = ""
    owner: str = ""
    attempt: Everyone[int] = 1
    asks: tuple[schemas.Ask, ...] = ()
    node: Everyone[str] = ""
    shares: Everyone[tuple[schemas.Share, ...]] = ()
    placed_revision: Everyone[int] = 0
    placed_time: Everyone[str] = ""
    bound_revision: Everyone[int] = 0
    allocated_revision: Everyone[int] = 0
    refused_revision: Everyone[int] = 0
    reasons: dict[schemas.RefusalCode, int] = {}  # nodes by cause, easiest to solve first
    cause: str = ""  # what blocks the pod
    never: bool = False  # would not fit on an empty fleet
    last_failure: People[str] = ""
    failed_devices: tuple[FailedDevice, ...] = ()
    rejection: People[str] = ""
    spec: str = ""  # digest of the manifest
    evicted_for: Names[str] = ""  # `namespace/name`
    room_on: str = ""  # node reserved for it while pods are evicted
    unready: str = ""  # why its node is not ready
    cpu_milli: int = 0  # in addition to devices, as is memory
    memory_mib: Everyone[int] = 0
    deadline_s: int = 0  # `spec.activeDeadlineSeconds`, from its placement; 0: none
    start: StartForecast | None = None  # of a pending pod, only if requested


class CordonAnswer(Answer, frozen=True):
    """One user's cordon of a device or node: the user, the reason and the time."""

    by: People[str]
    reason: People[str]
    time: Everyone[str]
    revision: Everyone[int]


class OffOffer(Answer, frozen=True):
    """A node or device that takes no new pods, and why."""

    node: Everyone[str]
    device: Everyone[str] = ""
    state: Everyone[Literal["cordoned", "silent", "not-ready"]] = "cordoned"
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()  # those of users


class RefusedReportAnswer(Answer, frozen=True):
    """The last report of a node's agent that the intake refused, and why."""

    cause: Everyone[str]
    message: People[str]
    revision: Everyone[int]
    time: Everyone[str]


class ClosedDevice(Answer, frozen=True):
    """A device that takes no new pods, because it failed or is cordoned."""

    device: Everyone[str]
    cause: Made[str] = ""  # whether it failed or is cordoned
    failed: Everyone[FailedDevice | None] = None
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()


class NodeAnswer(Answer, frozen=True):
    """One node. Used amounts are the requests of the pods placed there."""

    node: Everyone[str]
    ready: Everyone[bool]
    gone: Everyone[bool] = False
    cordon: Made[str] = ""  # text from `cordons` and `unschedulable`
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    unschedulable: Everyone[bool] = False
    silent: Everyone[str] = ""  # when the agent was found silent
    refused: Everyone[RefusedReportAnswer | None] = None
    simulated: Everyone[bool] = False
    driver: Everyone[str] = ""
    plugin: Everyone[str] = ""  # whose device plugin allocates its devices, if not our agent
    plugin_problem: Everyone[str] = ""  # why that plugin's devices are not offered
    devices: Everyone[int] = 0
    devices_open: Everyone[int] = 0  # can take a new pod
    closed: Everyone[tuple[ClosedDevice, ...]] = ()  # failed or cordoned themselves
    models: Everyone[tuple[str, ...]] = ()
    pods: Everyone[int] = 0
    pods_max: Everyone[int] = 0
    cpu_milli: Everyone[int] = 0
    cpu_used_milli: Everyone[int] = 0
    memory_mib: Everyone[int] = 0
    memory_used_mib: Everyone[int] = 0
    labels: People[dict[str, str]] = {}
    placement_revision: Everyone[int] = 0
    of_kubernetes: Everyone[bool] = False  # an API server reported the node


class Holder(Answer, frozen=True):
    """A pod's share of a device."""

    namespace: Namespace
    pod: str
    container: str
    memory_mib: Everyone[int]
    cores: Everyone[int]
    instance: Everyone[schemas.MigInstance | None] = None
    template: Everyone[str | None] = None


class DeviceAnswer(Answer, frozen=True):
    """One device and its pods.

    `cores` is percent for a GPU and AI cores for an NPU. In MIG mode, each instance has cores of
    its own."""

    device: Everyone[str]
    node: Everyone[str]
    index: Everyone[int]
    model: Everyone[str]
    family: Everyone[str]
    mode: Everyone[str]
    memory_mib: Everyone[int]
    memory_free_mib: Everyone[int]
    cores: Everyone[int]
    cores_free: Everyone[int]
    slots: Everyone[int]
    slots_free: Everyone[int]  # in MIG mode an upper bound
    present: Everyone[bool] = True
    healthy: Everyone[bool] = True  # as last reported
    health_reason: People[str] = ""
    cordon: Made[str] = ""  # text from `cordons`
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    node_cordon: Made[str] = ""
    node_cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    node_unschedulable: Everyone[bool] = False
    node_ready: Everyone[bool] = True
    node_silent: Everyone[str] = ""  # when its agent was found silent
    numa: Everyone[int | None] = None
    holders: Everyone[tuple[Holder, ...]] = ()


class PlacementAnswer(Answer, frozen=True):
    """Where a live pod is placed: its node, its shares, and the score."""

    namespace: Namespace
    name: str
    uid: str
    node: Everyone[str]
    phase: Everyone[str]
    attempt: Everyone[int]
    placed_revision: Everyone[int]
    placed_time: Everyone[str]
    score: Everyone[schemas.Score]
    shares: Everyone[tuple[schemas.Share, ...]] = ()
    families: dict[str, str] = {}  # of the devices of each container
    bound_revision: Everyone[int] = 0
    allocated_revision: Everyone[int] = 0


class GangAnswer(Answer, frozen=True):
    """One gang: its minimum size, and the number of its live pods in each phase."""

    group: str
    declared: Everyone[bool]
    min_available: Everyone[int]
    pods: Everyone[int] = 0
    phases: dict[str, int] = {}
    queue: str = ""
    namespace: Namespace = ""
    unready: dict[str, int] = {}  # placed pods on each node that is not ready
    models: dict[str, int] = {}  # pods by device model
    # by topology level of the gang or its subgroups: placed pods in each domain, such as a rack
    domains: dict[str, dict[str, int]] = {}


class QueuePart(Answer, frozen=True):
    """How much a queue uses of one kind of device or resource, and how much it is entitled to.

    `of` names this device family, device model or resource. Devices and CPU are in thousandths;
    memory is in MiB."""

    of: Everyone[str]
    devices: Everyone[bool]
    used: Everyone[int]
    asked: Everyone[int]  # by running and pending pods
    entitled: Everyone[int]
    owned: Everyone[int]  # the part of it that the queue deserves
    deserved: Everyone[int]  # also if the queue does not ask for it
    borrowed: Everyone[int] = 0  # of what other queues deserve
    lent: Everyone[int] = 0  # of what this queue deserves
    plain: Everyone[int | None] = None  # entitled without past use; null if that does not count


class Borrower(Answer, frozen=True):
    """A queue that uses more than it is entitled to, and by how much."""

    queue: Everyone[str]
    much: Everyone[int]  # as in QueuePart


class QueueEntitlement(Answer, frozen=True):
    """What a pending pod's queue is entitled to of each device family and resource that it needs.

    `borrowers` are the queues that use more than they are entitled to."""

    queue: Everyone[str]
    parts: Everyone[tuple[QueuePart, ...]] = ()
    takes_back: Everyone[bool] = False  # the pod is within what its queue is entitled to
    borrowers: Readers[tuple[Borrower, ...] | None] = ()


class QueueAnswer(Answer, frozen=True):
    """One queue: its place in the tree, its limits, and how much its placed pods use.

    Usage and pod counts include the queues below it. They are `null` for clients that may not read
    every namespace. CPU is in thousandths, memory in MiB; `cards` fields are by device model."""

    queue: Everyone[str]
    weight: Everyone[int]
    open: Everyone[bool]
    parent: Everyone[str] = ""  # as declared; empty at the top
    above: Everyone[tuple[str, ...]] = ()  # the queues above it, from the top
    priority: Everyone[int] = 0
    deserved: Everyone[dict[str, int]] = {}  # lent, and taken back if needed
    cards_deserved: Everyone[dict[str, int]] = {}
    guarantee: Everyone[dict[str, int]] = {}  # never lent
    cards_guarantee: Everyone[dict[str, int]] = {}
    reclaimable: Everyone[bool] = True  # false: its pods are never evicted for another queue
    fifo: Everyone[bool] = False  # a pod that fits nowhere keeps back the pods behind it
    safe_s: Everyone[int] = 0  # how long its pods run before another queue may take their place
    parts: Readers[tuple[QueuePart, ...] | None] = ()
    past_use: Readers[dict[str, int] | None] = {}  # amounts as in QueuePart, times hours
    capability: Everyone[dict[str, int]] = {}
    used: Readers[dict[str, int] | None] = {}
    cards: Everyone[dict[str, int]] = {}  # device limit by model
    devices: Readers[dict[str, int] | None] = {}  # by model; a shared device counts once
    pods: Readers[int | None] = 0
    waiting: Readers[int | None] = 0


class QuotaAnswer(Answer, frozen=True):
    """One ResourceQuota, and how much of it the placed pods of the namespace use.

    Resources that no device has are left out."""

    namespace: Namespace
    quota: str
    hard: dict[str, int] = {}
    used: dict[str, int] = {}
    of_kubernetes: bool = False  # only an API server deletes it


class Page(Answer, Generic[T], frozen=True):
    """One page of a list; `continue` leads to the next page and is empty on the last one.

    Pods are in order of submission, placements in order of decision, devices by node and index.
    Nodes and gangs are by name: node-2 before node-10."""

    revision: Everyone[int]
    items: Everyone[tuple[T, ...]]
    next: Everyone[str] = msgspec.field(default="", name="continue")
    time: Everyone[str] = ""


PodPage = Page[PodAnswer]
NodePage = Page[NodeAnswer]
DevicePage = Page[DeviceAnswer]
PlacementPage = Page[PlacementAnswer]
GangPage = Page[GangAnswer]
QueuePage = Page[QueueAnswer]
QuotaPage = Page[QuotaAnswer]


class PodDetail(Answer, frozen=True):
    """The answer about one pod, as of `revision`."""

    revision: Everyone[int]
    pod: Everyone[PodAnswer]
    time: Everyone[str] = ""


class NodeDetail(Answer, frozen=True):
    """The answer about one node and its devices, as of `revision`."""

    revision: Everyone[int]
    node: Everyone[NodeAnswer]
    devices: Everyone[tuple[DeviceAnswer, ...]]
    time: Everyone[str] = ""


class Step(Answer, frozen=True):
    """One step in a pod's history: the phase, and the event that brought the pod there."""

    phase: Everyone[str]
    revision: Everyone[int]
    time: Everyone[str] = ""


class Part(Answer, frozen=True, omit_defaults=True):
    """A name in a sentence, marked so that clients can link it or hide it."""

    name: People[str]
    namespace: Annotated[str | None, Seen(Rule.NAMESPACE)] = None  # None for a node
    quoted: Everyone[bool] = False  # text that a user, driver or program wrote

    @property
    def text(self) -> str:
        """Return the name as it appears in the sentence."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


def joined(parts: Iterable[str | Part]) -> str:
    """Join the parts into a sentence."""
    return "".join(part if isinstance(part, str) else part.text for part in parts)


class CauseRow(Answer, frozen=True):
    """One reason why nodes do not fit a pod: how many nodes, and what would unblock the pod."""

    code: schemas.RefusalCode
    words: str
    nodes: int
    unblocked_by: Made[str] = ""  # all of what follows, as text
    command: str = ""
    cure: str = ""
    held_by: Names[tuple[str, ...]] = ()  # the first of the `holders`
    holders: int = 0  # pods that use up a limit
    cordoned: tuple[OffOffer, ...] = ()
    cordoned_more: int | None = 0  # None if unknown
    people: Made[str] = ""
    off_offer: bool = False  # what would fit is closed
    is_limit: bool = False  # refuses the pod on every node


class MissRow(Answer, frozen=True):
    """A node that nearly fits, and what it lacks."""

    node: str
    code: schemas.RefusalCode
    words: str
    device: str = ""
    needed: int = 0
    available: int = 0
    needed_words: str = ""
    available_words: str = ""
    missing: str = ""
    held_by: Names[tuple[str, ...]] = ()  # the first of the pods that use the devices
    holders: int = 0  # number of these pods


class WhyRefused(Answer, frozen=True):
    """Why no node fits the pod: the causes, and the nodes that come nearest."""

    revision: Everyone[int]
    nodes: int
    causes: tuple[CauseRow, ...]
    nearest: tuple[MissRow, ...] = ()  # could run the pod once others end; if `never`, lack least
    never: bool = False  # no node could
    unbelieved: tuple[str, ...] = ()  # might fit, but their reports were refused
    since: tuple[OffOffer, ...] = ()  # cordoned, failed or gone after the event
    since_more: int = 0  # further cordons
    since_text: Made[str] = ""
    spared: str = ""  # why no pod is evicted
    entitlement: QueueEntitlement | None = None  # if queues lend to one another
    limit: str = ""  # blocks the pod on every node
    reason: str = ""  # the limit, or the first cause
    reason_parts: tuple[str | Part, ...] = ()
    text: str = ""  # all causes


class RunnerUp(Answer, frozen=True):
    """Another node that could run the pod, compared by score with the chosen one."""

    node: Everyone[str]
    total: Everyone[float]
    parts: dict[str, float] = {}
    behind: dict[str, float] = {}  # by how much each part is lower


class HeldShare(Answer, frozen=True):
    """A share of a pod, with the index, model and family of its device."""

    share: Everyone[schemas.Share]
    index: Everyone[int] = -1
    model: Everyone[str] = ""
    family: Everyone[str] = ""


class WhyPlaced(Answer, frozen=True):
    """Why the pod is on its node, and which other nodes could run it."""

    node: Everyone[str]
    revision: Everyone[int]
    time: Everyone[str]
    attempt: Everyone[int]
    score: Everyone[schemas.Score]
    runners_up: tuple[RunnerUp, ...] = ()
    fitting: int = 0  # how many of the `nodes` could run it
    nodes: int = 0
    shares: Everyone[tuple[HeldShare, ...]] = ()
    choice: str = ""  # how its devices were chosen within the node
    found_there: bool = False  # it ran there before this ledger existed
    held: bool = False  # it is bound once enough pods of its gang are placed
    ends_by: OrEmpty[str] = ""  # `activeDeadlineSeconds` after its placement; empty if unknown


class WhyIdle(Answer, frozen=True):
    """How long a pod has been idle, by the last report of its node."""

    since: str
    seconds: int  # without work; time without reports does not count
    memory_mib: int  # peak of the last report
    evictable: bool  # a pending pod of its queue and priority may evict it


class WhyHeldBack(Answer, frozen=True):
    """Why a pod waits before it is placed again: agents refused its earlier placements."""

    failures: int
    node: Everyone[str]
    until: str


class WhyWaiting(Answer, frozen=True):
    """The queue position of a pod for which no scheduler has decided yet."""

    position: Everyone[int]
    pending: int
    gang: str = ""  # what the pod's gang still waits for


class PodEnd(Answer, frozen=True):
    """How a pod ended. The rest of the answer describes the pod just before its end."""

    revision: Everyone[int]
    time: Everyone[str]
    reason: People[str]
    before_revision: int
    phase: Everyone[str]  # before the end
    failed_before: tuple[FailedDevice, ...] = ()


class Eviction(Answer, frozen=True):
    """The eviction of one pod for another: the event, and a sentence about it."""

    revision: Everyone[int]
    time: Everyone[str]
    namespace: Namespace
    name: str
    node: Everyone[str]
    beneficiary: Names[str]
    sentence: Made[str] = ""
    event: OrNone[schemas.PodEvicted | None] = None


class End(Answer, frozen=True):
    """When and why a pod ended."""

    revision: Everyone[int]
    time: Everyone[str]
    reason: People[str]  # empty if unknown


class Evictions(Answer, frozen=True):
    """Evictions that made room for a pod, and the eviction of its newest predecessor."""

    made_room: EachItem[tuple[Eviction, ...]] = ()  # of other pods for this pod
    predecessors: int = 0  # earlier pods of this name
    before: Eviction | None = None  # of the newest predecessor
    ended: End | None = None  # when and why that predecessor ended


class Breach(Answer, frozen=True):
    """The last time that a container exceeded its share of a device."""

    revision: Everyone[int]
    time: Everyone[str]
    container: str
    device: Everyone[str]
    code: str
    times: int  # since the pod was placed
    sentence: str


class Why(Answer, frozen=True):
    """The explanation of a pod: why it is placed, refused, waiting or held back."""

    revision: Everyone[int]
    namespace: Namespace
    name: str
    uid: str
    phase: Everyone[str]
    sentence: Made[str] = ""
    cause: Made[str] = ""  # what a refused pod waits for
    awaits: Made[str] = ""  # what a pod waits for that no scheduler has seen
    group: str = ""
    chooser: str = ""
    gates: tuple[str, ...] = ()
    of_kubernetes: bool = False  # an API server ends evicted pods
    history: tuple[Step, ...] = ()
    placed: Everyone[WhyPlaced | None] = None
    refused: Everyone[WhyRefused | None] = None
    waiting: WhyWaiting | None = None
    held_back: WhyHeldBack | None = None
    rejected: schemas.PodRejected | None = None  # an error in the manifest
    evicted: schemas.PodEvicted | None = None
    evicted_in_vain: bool = False  # the pod that needed the room is gone
    evicts: OwnItems[tuple[schemas.PodEvicted, ...]] = ()  # evictions for this pod
    leaving: Names[tuple[str, ...]] = ()  # evicted pods
    room_on: str = ""  # node reserved for it while pods are evicted
    reserved: schemas.NodesReserved | None = None  # nodes for it, or that are kept from it
    end: PodEnd | None = None
    unready: str = ""  # why its node is not ready
    gang: GangAnswer | None = None
    failed_devices: tuple[FailedDevice, ...] = ()
    idle: WhyIdle | None = None  # if the configuration looks for idle pods
    last_failure: People[str] = ""
    evictions: Evictions | None = None
    breaches: tuple[Breach, ...] = ()  # newest first
    start: StartForecast | None = None  # of a pending pod; None for a past revision
    time: Everyone[str] = ""


class QueuedPod(Answer, frozen=True):
    """A pending pod, its position in the queue, and why it is pending."""

    position: Everyone[int]
    namespace: Namespace
    name: str
    uid: str
    priority: int
    since_revision: Everyone[int]
    since_time: Everyone[str]
    refused_revision: Everyone[int] = 0
    nearest: str = ""
    missing: str = ""  # what the node `nearest` lacks
    nominated: Everyone[str] = ""  # node reserved for it while pods are evicted
    leaving: Everyone[int] = 0  # evicted pods that must still end
    leaving_names: Names[tuple[str, ...]] = ()
    room: Made[str] = ""  # a sentence about the evicted pods
    last_failure: People[str] = ""
    sentence: str = ""  # why the pod is pending; empty until a scheduler has seen it


class Line(Answer, frozen=True):
    """A group of pending pods with the same request, and why they are pending."""

    wants: Everyone[str]  # describes `asks` and `wishes`
    devices: Everyone[int]  # per pod
    pods: Everyone[int]
    oldest_revision: Everyone[int]
    oldest_time: Everyone[str]
    lasting: Everyone[bool] = False  # the pods stay pending even if all others end
    asks: Everyone[tuple[schemas.Ask, ...]] = ()
    wishes: Everyone[tuple[str, ...]] = ()
    whose: Namespace = ""  # namespace of the pod that the texts describe
    queue: OrEmpty[str] = ""
    gang: OrNone[GangAnswer | None] = None
    sentence: str = ""  # why the first pod is pending
    apart: OrEmpty[str] = ""  # a limit, or what the gang lacks
    nodes: int = 0  # in total
    causes: tuple[CauseRow, ...] = ()  # each counts nodes; a limit counts none
    nearest: tuple[MissRow, ...] = ()
    start: OrNone[StartForecast | None] = None  # of the pod in the texts, only if requested
    first: EachItem[tuple[QueuedPod, ...]] = ()


class LinesAnswer(Answer, frozen=True):
    """All groups of pending pods with the same request, with totals."""

    revision: Everyone[int]
    pods: Everyone[int]
    devices: Everyone[int]
    gated: Everyone[int]  # in no group
    rejected: Everyone[int]  # cannot be read; in no group
    oldest_time: Everyone[str] = ""
    lasting: Everyone[int] = 0
    making_room: Everyone[int] = 0  # pods for which others are being evicted
    lines_count: Everyone[int] = 0
    lines: Everyone[tuple[Line, ...]] = ()
    time: Everyone[str] = ""


class NamespaceRow(Answer, frozen=True):
    """The number of a namespace's live pods, and of the devices that they use."""

    namespace: Namespace
    pods: Everyone[int]
    devices: Everyone[int]  # a shared device counts for each pod


class NamespacesAnswer(Answer, frozen=True):
    """The namespaces with live pods, sorted by number of devices and then of pods, most first."""

    revision: Everyone[int]
    items: Everyone[tuple[NamespaceRow, ...]] = ()
    time: Everyone[str] = ""


class SourceRow(Answer, frozen=True):
    """One source of devices, such as our agent or HAMi's plugin: its nodes and devices."""

    # `shadow`: our agent only reports. `none`: Kubernetes has devices that nothing reports
    source: Literal["agent", "shadow", "hami", "volcano", "vendor", "none"]
    placeable: bool  # Apportion may place pods with devices there
    problem: str = ""  # why the plugin's devices cannot be read
    nodes: int = 0
    devices: int = 0  # as reported or registered
    first: tuple[str, ...] = ()  # the first of the nodes


class PlacedRow(Answer, frozen=True):
    """How many live pods with devices Apportion and other schedulers placed in a namespace."""

    namespace: str
    ours: int = 0
    others: int = 0
    left: int = 0  # pods that Apportion has placed or not yet placed, with and without devices
    pending: int = 0  # pods with devices that Apportion has not placed yet


# In the order of a migration, and `conflict`, which comes first whenever it occurs
MigrationStep = Literal[
    "conflict", "shadow", "label-node", "repair-plugin", "take-over-node", "move-namespace",
    "move-more", "stop-old-scheduler", "replace-plugins", "done",
]  # fmt: skip
# In the order of the way back
BackStep = Literal[
    "conflict", "restore-names", "bind-pods", "untaint-node", "return-node", "return-agent",
    "return-namespace", "uninstall",
]  # fmt: skip


class MigrationAnswer(Answer, frozen=True):
    """How far the cluster has moved from another system to Apportion, and the next step."""

    revision: Everyone[int]
    # `shadow`: only other schedulers place pods with devices. `both`: Apportion, too.
    # `scheduler`: only Apportion, on devices that another plugin allocates. `agents`: only ours
    stage: Literal["shadow", "both", "scheduler", "agents"]
    step: MigrationStep
    back: BackStep  # the next step if the cluster is to leave Apportion
    target: str = ""  # the node or namespace of the step
    back_target: str = ""  # the node or namespace of that step
    pods: tuple[str, ...] = ()  # the first pods that the step moves
    pods_count: int = 0
    pods_alone: bool = False  # none of them has a controller, such as a Deployment or Job
    back_pods: tuple[str, ...] = ()  # the first pods that the step back moves
    back_pods_count: int = 0
    tainted: bool = False  # a node with another plugin has the taint of the migration guide
    unbound: tuple[str, ...] = ()  # placed on nodes that another plugin serves, not bound yet
    unbound_count: int = 0
    sources: tuple[SourceRow, ...] = ()
    namespaces: tuple[PlacedRow, ...] = ()  # those with most pods of other schedulers first
    scheduler_names: tuple[str, ...] = ()  # that Apportion serves
    overtaken: tuple[str, ...] = ()  # pods that name one of these, bound by another scheduler
    overtaken_count: int = 0
    time: Everyone[str] = ""
