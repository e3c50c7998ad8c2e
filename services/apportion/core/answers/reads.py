"""The answers of the read side, as structs: what the gateway sends and the command line reads.

One definition serves both, so they cannot disagree. Every answer says as of which revision it is.
Amounts carry their unit in the field's name. Every field is always there, so that a script need not
ask; only events that stand inside an answer (asks, shares, scores) leave out their defaults.

Invariant: an answer holds nothing that the state does not say, except `RevisionAnswer.frozen`."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

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
from apportion_schemas import (
    Ask,
    Configuration,
    MigInstance,
    PodEvicted,
    PodRejected,
    PolicyChanged,
    RefusalCode,
    Score,
    Share,
)

T = TypeVar("T")
UNKNOWN_DEVICE: Final = "unknown-device"
AMBIGUOUS_DEVICE: Final = "ambiguous-device"
UNKNOWN_PATH: Final = "unknown-path"
NO_PRICES: Final = "no-prices"


def fields_of(source: object, names: str) -> dict[str, Any]:
    """These attributes of the source, for a struct that has them by the same names.

    It takes some microseconds, so answers of which there are thousands name their fields."""
    return {name: getattr(source, name) for name in names.split()}


class Answer(Struct, frozen=True):
    """What all parts of an answer have in common.

    `time`, where an answer has it, is that of its revision if a moment was asked for, else empty.
    """


class ErrorAnswer(Answer, frozen=True):
    """Why a request was not answered: what is wrong, in which parameter, and what to do.

    `code` names errors that programs tell apart: `unknown-device`, `ambiguous-device`,
    `unknown-path` (this gateway has no such question) and `no-prices` (it has no price file). Where
    the error begins with the field, `rest` is what follows, for clients that call the field
    otherwise."""

    error: People[str]
    field: Everyone[str] = ""
    fix: People[str] = ""
    code: Everyone[str] = ""
    rest: People[str] = ""


class RevisionAnswer(Answer, frozen=True):
    """How far the gateway has folded.

    `frozen` is why no pod can be placed or started now: a key of `FREEZES` in `health.py`, or empty
    if nothing prevents it. It is empty for a moment of the past."""

    revision: Everyone[int]
    time: Everyone[str] = ""
    frozen: Everyone[str] = ""


class SummaryAnswer(Answer, frozen=True):
    """The cluster at a glance. Phases count pods; a pending pod with a refusal is `refused`.

    Memory is that of the devices that are there; `refused_events` no reader applies."""

    revision: Everyone[int]
    policy: Everyone[PolicyChanged]
    phases: Everyone[dict[str, int]] = {}
    nodes: Everyone[int] = 0
    nodes_ready: Everyone[int] = 0
    devices: Everyone[int] = 0
    devices_open: Everyone[int] = 0
    memory_mib: Everyone[int] = 0
    memory_free_mib: Everyone[int] = 0
    refused_events: Everyone[int] = 0
    time: Everyone[str] = ""


class ConfigurationAnswer(Answer, frozen=True):
    """The document that every service obeys, and since which revision; 0 if none was applied."""

    revision: Everyone[int]
    configuration_revision: Everyone[int]
    configuration: Configuration
    time: Everyone[str] = ""


class FailedDevice(Answer, frozen=True):
    """A device that a pod holds and that is no good, with the reason.

    `revision` and `time` are of the event since which it is, where that was looked for."""

    device: Everyone[str]
    reason: People[str]
    revision: Everyone[int] = 0
    time: Everyone[str] = ""


class PodAnswer(Answer, frozen=True):
    """One live pod. `reasons` counts nodes per cause while the pod is refused, the nearest cause
    first; `cause` is in words that of most nodes that can change, or the limit that keeps the pod
    out; without reasons it is a gate, its gang or another scheduler for which it waits.

    A pod that cannot be read has the phase `rejected`, no revisions, and the words in `rejection`.
    `never`: no node could hold it with nothing there. `spec` is a digest of what it asks for, its
    labels, gang and queue: equal for equal manifests. `evicted_for` is the `namespace/name` of the
    pod for which it is to go, while it has not gone; `room_on` the node where room is made for it,
    or was. `unready` is why the node that it has is not ready, in words, so that nobody knows
    whether it runs. `cpu_milli` and `memory_mib` are what it asks of its node beside devices."""

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
    asks: tuple[Ask, ...] = ()
    node: Everyone[str] = ""
    shares: Everyone[tuple[Share, ...]] = ()
    placed_revision: Everyone[int] = 0
    placed_time: Everyone[str] = ""
    bound_revision: Everyone[int] = 0
    allocated_revision: Everyone[int] = 0
    refused_revision: Everyone[int] = 0
    reasons: dict[RefusalCode, int] = {}
    cause: str = ""
    never: bool = False
    last_failure: People[str] = ""
    failed_devices: tuple[FailedDevice, ...] = ()
    rejection: People[str] = ""
    spec: str = ""
    evicted_for: Names[str] = ""
    room_on: str = ""
    unready: str = ""
    cpu_milli: int = 0
    memory_mib: Everyone[int] = 0


class CordonAnswer(Answer, frozen=True):
    """One reason for which a device or a node takes nothing new: whose, since when."""

    by: People[str]
    reason: People[str]
    time: Everyone[str]
    revision: Everyone[int]


class OffOffer(Answer, frozen=True):
    """A node, or a device of it, that takes nothing new; `cordons` where people cordoned it."""

    node: Everyone[str]
    device: Everyone[str] = ""
    state: Everyone[Literal["cordoned", "silent", "not-ready"]] = "cordoned"
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()


class RefusedReportAnswer(Answer, frozen=True):
    """What an intake did not take of a node's agent: the name of the reason, and it in words."""

    cause: Everyone[str]
    message: People[str]
    revision: Everyone[int]
    time: Everyone[str]


class ClosedDevice(Answer, frozen=True):
    """A device that nothing new may go onto for its own sake: it failed, or is cordoned, or both.

    `cause` is made from `failed` and `cordons`."""

    device: Everyone[str]
    cause: Made[str] = ""
    failed: Everyone[FailedDevice | None] = None
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()


class NodeAnswer(Answer, frozen=True):
    """One node. Used amounts are what the pods placed there ask for.

    `cordons` are the reasons of the ledger for which nothing new goes there, `unschedulable` is
    that of Kubernetes, and `cordon` is made from both. `silent` is when its agent was found silent,
    empty while it is heard; such a node is not ready. `devices_open` are those that something new
    may go onto: none of a node that is not ready, or cordoned. `closed` are those that failed or
    are cordoned themselves. `refused` is what was last refused of its agent, until a report of the
    node is taken. `of_kubernetes`: an API server tells of it, so that its pods are Kubernetes' to
    end."""

    node: Everyone[str]
    ready: Everyone[bool]
    gone: Everyone[bool] = False
    cordon: Made[str] = ""
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    unschedulable: Everyone[bool] = False
    silent: Everyone[str] = ""
    refused: Everyone[RefusedReportAnswer | None] = None
    simulated: Everyone[bool] = False
    driver: Everyone[str] = ""
    devices: Everyone[int] = 0
    devices_open: Everyone[int] = 0
    closed: Everyone[tuple[ClosedDevice, ...]] = ()
    models: Everyone[tuple[str, ...]] = ()
    pods: Everyone[int] = 0
    pods_max: Everyone[int] = 0
    cpu_milli: Everyone[int] = 0
    cpu_used_milli: Everyone[int] = 0
    memory_mib: Everyone[int] = 0
    memory_used_mib: Everyone[int] = 0
    labels: People[dict[str, str]] = {}
    placement_revision: Everyone[int] = 0
    of_kubernetes: Everyone[bool] = False


class Holder(Answer, frozen=True):
    """One share of a device and whose it is."""

    namespace: Namespace
    pod: str
    container: str
    memory_mib: Everyone[int]
    cores: Everyone[int]
    instance: Everyone[MigInstance | None] = None
    template: Everyone[str | None] = None


class DeviceAnswer(Answer, frozen=True):
    """One device and who is on it. `cores` is percent for a GPU and AI cores for an NPU.

    In MIG mode cores mean nothing, for an instance has its own, and `slots_free` is how many
    instances more there is room for at most.

    `healthy` is what was last said of it: where the node is not ready nobody knows whether it still
    is, and `node_silent` is when its agent was found silent. `cordon` and `node_cordon` are made
    from the reasons of the device, and from those of its node and of Kubernetes."""

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
    slots_free: Everyone[int]
    present: Everyone[bool] = True
    healthy: Everyone[bool] = True
    health_reason: People[str] = ""
    cordon: Made[str] = ""
    cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    node_cordon: Made[str] = ""
    node_cordons: Everyone[tuple[CordonAnswer, ...]] = ()
    node_unschedulable: Everyone[bool] = False
    node_ready: Everyone[bool] = True
    node_silent: Everyone[str] = ""
    numa: Everyone[int | None] = None
    holders: Everyone[tuple[Holder, ...]] = ()


class PlacementAnswer(Answer, frozen=True):
    """One live placement: where the pod is and which devices it shares."""

    namespace: Namespace
    name: str
    uid: str
    node: Everyone[str]
    phase: Everyone[str]
    attempt: Everyone[int]
    placed_revision: Everyone[int]
    placed_time: Everyone[str]
    score: Everyone[Score]
    shares: Everyone[tuple[Share, ...]] = ()
    bound_revision: Everyone[int] = 0
    allocated_revision: Everyone[int] = 0


class GangAnswer(Answer, frozen=True):
    """One gang: how many must hold places together, and how many live pods are in each phase.

    `unready` counts those that hold a place on a node that is not ready, by the node: nobody knows
    whether they run. `models` counts those that hold devices, by the model of the devices."""

    group: str
    declared: Everyone[bool]
    min_available: Everyone[int]
    pods: Everyone[int] = 0
    phases: dict[str, int] = {}
    queue: str = ""
    namespace: Namespace = ""
    unready: dict[str, int] = {}
    models: dict[str, int] = {}


class QueueAnswer(Answer, frozen=True):
    """One queue. `used` is what its placed pods hold of what `capability` limits; `cards` are the
    cards by model that it may hold, and `devices` count those by model that its pods hold all or a
    part of: each once, however many share it. What pods hold, and how many there are, is `null` for
    whoever may not read everything: they may be of namespaces that he does not see."""

    queue: Everyone[str]
    weight: Everyone[int]
    open: Everyone[bool]
    capability: Everyone[dict[str, int]] = {}
    used: Readers[dict[str, int] | None] = {}
    cards: Everyone[dict[str, int]] = {}
    devices: Readers[dict[str, int] | None] = {}
    pods: Readers[int | None] = 0
    waiting: Readers[int | None] = 0


class QuotaAnswer(Answer, frozen=True):
    """One quota. `used` is what the placed pods of its namespace hold of what `hard` limits; what
    is not in it is of no device. `of_kubernetes`: an API server tells of it, and is who deletes it.
    """

    namespace: Namespace
    quota: str
    hard: dict[str, int] = {}
    used: dict[str, int] = {}
    of_kubernetes: bool = False


class Page(Answer, Generic[T], frozen=True):
    """One page of a list; the next one is asked for with `continue`, which is empty at the end.

    Pods come in the order in which they were submitted, and then those that cannot be read;
    placements in that in which they were decided, devices by node and index (a page ends with a
    whole node), nodes and gangs by name, and numbers in names as such: node-2 before node-10."""

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
    """One pod and the revision as of which it is."""

    revision: Everyone[int]
    pod: Everyone[PodAnswer]
    time: Everyone[str] = ""


class NodeDetail(Answer, frozen=True):
    """One node with its devices."""

    revision: Everyone[int]
    node: Everyone[NodeAnswer]
    devices: Everyone[tuple[DeviceAnswer, ...]]
    time: Everyone[str] = ""


class Step(Answer, frozen=True):
    """One step in the life of a pod: what happened, and the event that says so."""

    phase: Everyone[str]
    revision: Everyone[int]
    time: Everyone[str] = ""


class Part(Answer, frozen=True, omit_defaults=True):
    """A name in a sentence: of a pod with its namespace, else of a node. Or what a person, a driver
    or a program wrote, which is `quoted`."""

    name: People[str]
    namespace: Annotated[str | None, Seen(Rule.NAMESPACE)] = None
    quoted: Everyone[bool] = False

    @property
    def text(self) -> str:
        """As it is in the sentence."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


def joined(parts: Iterable[str | Part]) -> str:
    """The sentence of these parts."""
    return "".join(part if isinstance(part, str) else part.text for part in parts)


class CauseRow(Answer, frozen=True):
    """One cause of a refusal: on how many nodes, in words, and what would unblock it.

    `unblocked_by` is made from `command`, `cure`, the first of the `holders` of a limit, and the
    first that are `cordoned`; `cordoned_more` counts the others, and is None where there may be
    more than were looked at. `people` has `cordoned` in words. `off_offer`: what would do is
    cordoned, failed or away. `is_limit`: a limit refuses the pod, wherever it would stand."""

    code: RefusalCode
    words: str
    nodes: int
    unblocked_by: Made[str] = ""
    command: str = ""
    cure: str = ""
    held_by: Names[tuple[str, ...]] = ()
    holders: int = 0
    cordoned: tuple[OffOffer, ...] = ()
    cordoned_more: int | None = 0
    people: Made[str] = ""
    off_offer: bool = False
    is_limit: bool = False


class MissRow(Answer, frozen=True):
    """One node that nearly fitted. The amounts are numbers; `missing` is words with the unit.

    `held_by` are the first of the `holders`: pods that hold devices there, whose end would help."""

    node: str
    code: RefusalCode
    words: str
    device: str = ""
    needed: int = 0
    available: int = 0
    needed_words: str = ""
    available_words: str = ""
    missing: str = ""
    held_by: Names[tuple[str, ...]] = ()
    holders: int = 0


class WhyRefused(Answer, frozen=True):
    """Why no node fits; `revision` is the event since which these causes hold.

    `nearest` are nodes that could hold the pod once what is there has ended. `never`: there is no
    such node, and `nearest` are those that lack least. `unbelieved` are nodes that might hold it,
    were what their agents say of their devices not refused. `since` is what was taken off offer
    after that event, `since_more` counts more that are cordoned, and `since_text` has both in
    words; `spared` is why nobody goes for the pod, in a sentence. `limit` is what keeps it out
    wherever it would stand, and `reason` that, or else the first cause and the nearest node, for
    whoever has room for one. `reason_parts` are its parts: a node is one, and of a pod that can
    never fit the first says that. `text` has all causes in one sentence, which does not say
    `never`."""

    revision: Everyone[int]
    nodes: int
    causes: tuple[CauseRow, ...]
    nearest: tuple[MissRow, ...] = ()
    never: bool = False
    unbelieved: tuple[str, ...] = ()
    since: tuple[OffOffer, ...] = ()
    since_more: int = 0
    since_text: Made[str] = ""
    spared: str = ""
    limit: str = ""
    reason: str = ""
    reason_parts: tuple[str | Part, ...] = ()
    text: str = ""


class RunnerUp(Answer, frozen=True):
    """A node that fitted too: its total, and by how much each part of the score was lower there."""

    node: Everyone[str]
    total: Everyone[float]
    parts: dict[str, float] = {}
    behind: dict[str, float] = {}


class HeldShare(Answer, frozen=True):
    """A share with what its device is."""

    share: Everyone[Share]
    index: Everyone[int] = -1
    model: Everyone[str] = ""


class WhyPlaced(Answer, frozen=True):
    """Why the pod is where it is: `fitting` of `nodes` could have taken it. `choice` says how its
    devices were chosen among those of the node; it is empty where that is not known any more.
    `found_there`: the pod ran there before this ledger held it, so there is no score."""

    node: Everyone[str]
    revision: Everyone[int]
    time: Everyone[str]
    attempt: Everyone[int]
    score: Everyone[Score]
    runners_up: tuple[RunnerUp, ...] = ()
    fitting: int = 0
    nodes: int = 0
    shares: Everyone[tuple[HeldShare, ...]] = ()
    choice: str = ""
    found_there: bool = False


class WhyHeldBack(Answer, frozen=True):
    """A pod whose placements agents refused: how often in a row, on which node last, and until when
    it waits for its next placement."""

    failures: int
    node: Everyone[str]
    until: str


class WhyWaiting(Answer, frozen=True):
    """A pod without a decision: its place among the pending, by priority and then by revision.

    `gang` says in words what its gang still waits for."""

    position: Everyone[int]
    pending: int
    gang: str = ""


class PodEnd(Answer, frozen=True):
    """The end of a pod that is explained as of `before_revision`, just before its end.

    `phase` and `failed_before` are the phase and the failed devices that it had then."""

    revision: Everyone[int]
    time: Everyone[str]
    reason: People[str]
    before_revision: int
    phase: Everyone[str]
    failed_before: tuple[FailedDevice, ...] = ()


class Eviction(Answer, frozen=True):
    """That a pod had to go for another one: the event, and a sentence made from it."""

    revision: Everyone[int]
    time: Everyone[str]
    namespace: Namespace
    name: str
    node: Everyone[str]
    beneficiary: Names[str]
    sentence: Made[str] = ""
    event: OrNone[PodEvicted | None] = None


class End(Answer, frozen=True):
    """That a pod ended, and why, as in `drained from n1 by ann: fan`; the reason may be empty."""

    revision: Everyone[int]
    time: Everyone[str]
    reason: People[str]


class Evictions(Answer, frozen=True):
    """What only the past knows of a pod: `made_room` are those that were evicted for it before it
    had its place; `predecessors` is how many pods had its name before it, `before` the eviction of
    the newest of them, if it was evicted, and `ended` its end."""

    made_room: EachItem[tuple[Eviction, ...]] = ()
    predecessors: int = 0
    before: Eviction | None = None
    ended: End | None = None


class Breach(Answer, frozen=True):
    """That a container got out of its share of a device, and how often it did since its pod was
    placed; revision, time and sentence are those of the last time. See `ShareBreached` for `code`.
    """

    revision: Everyone[int]
    time: Everyone[str]
    container: str
    device: Everyone[str]
    code: str
    times: int
    sentence: str


class Why(Answer, frozen=True):
    """All that is known of one pod's place: a sentence, then exactly one of the four parts; none of
    a pod with gates, which stands in no line.

    `rejected` is what cannot be read in its manifest: nobody looks for a place until it is mended.
    `evicted` says for whom the pod is to go, `evicts` who is to go for it; `evicted_in_vain`: the
    one for which it is to go is not there any more. `failed_devices` are no good, and it holds
    them, or held them and they have failed since; `unready` is why its node is not ready. A pod
    that has ended has the phase `ended`, and the rest is as it was just before; see `end`. `cause`
    is what a refused pod waits for: its sentence without its name and since when; `awaits` is that
    of a pod at which no scheduler has looked. `leaving` are the `namespace/name` of `evicts`, and
    `room_on` the node where they leave. `of_kubernetes`: an API server ends evicted pods. `chooser`
    and `gates` are as submitted. `evictions` is there where the past was asked: at a moment, and of
    a pod that has ended. `breaches` too, the newest first."""

    revision: Everyone[int]
    namespace: Namespace
    name: str
    uid: str
    phase: Everyone[str]
    sentence: Made[str] = ""
    cause: Made[str] = ""
    awaits: Made[str] = ""
    group: str = ""
    chooser: str = ""
    gates: tuple[str, ...] = ()
    of_kubernetes: bool = False
    history: tuple[Step, ...] = ()
    placed: Everyone[WhyPlaced | None] = None
    refused: Everyone[WhyRefused | None] = None
    waiting: WhyWaiting | None = None
    held_back: WhyHeldBack | None = None
    rejected: PodRejected | None = None
    evicted: PodEvicted | None = None
    evicted_in_vain: bool = False
    evicts: OwnItems[tuple[PodEvicted, ...]] = ()
    leaving: Names[tuple[str, ...]] = ()
    room_on: str = ""
    end: PodEnd | None = None
    unready: str = ""
    gang: GangAnswer | None = None
    failed_devices: tuple[FailedDevice, ...] = ()
    last_failure: People[str] = ""
    evictions: Evictions | None = None
    breaches: tuple[Breach, ...] = ()
    time: Everyone[str] = ""


class QueuedPod(Answer, frozen=True):
    """One pod in its line. `position` is among all that wait, `missing` what the nearest lacks.

    `nominated` is the node where room is made for it, `leaving` counts the pods that have yet to
    leave, which have `leaving_names`, and `room` says it in a sentence; all are empty where nobody
    is evicted for the pod. `sentence` says in short why it does not go; it is empty while nobody
    has looked."""

    position: Everyone[int]
    namespace: Namespace
    name: str
    uid: str
    priority: int
    since_revision: Everyone[int]
    since_time: Everyone[str]
    refused_revision: Everyone[int] = 0
    nearest: str = ""
    missing: str = ""
    nominated: Everyone[str] = ""
    leaving: Everyone[int] = 0
    leaving_names: Names[tuple[str, ...]] = ()
    room: Made[str] = ""
    last_failure: People[str] = ""
    sentence: str = ""


class Line(Answer, frozen=True):
    """Pods that ask for the same. `devices` is of one pod; `pods` counts all of the line.

    `wants` has `asks` and `wishes` in words. `sentence` says why the first does not go; it is empty
    while nobody has looked. `apart` is the same where it says more than the causes do: a limit, or
    what its gang lacks. `lasting`: no end of a pod would help, for no node has such devices, or so
    much on them, or no limit allows it. `causes` count `nodes`, and none for a limit. All this is
    said of a pod of the namespace `whose`: limits are not for every reader; so is its `queue`, and
    the `gang` that it waits for."""

    wants: Everyone[str]
    devices: Everyone[int]
    pods: Everyone[int]
    oldest_revision: Everyone[int]
    oldest_time: Everyone[str]
    lasting: Everyone[bool] = False
    asks: Everyone[tuple[Ask, ...]] = ()
    wishes: Everyone[tuple[str, ...]] = ()
    whose: Namespace = ""
    queue: OrEmpty[str] = ""
    gang: OrNone[GangAnswer | None] = None
    sentence: str = ""
    apart: OrEmpty[str] = ""
    nodes: int = 0
    causes: tuple[CauseRow, ...] = ()
    nearest: tuple[MissRow, ...] = ()
    first: EachItem[tuple[QueuedPod, ...]] = ()


class LinesAnswer(Answer, frozen=True):
    """All lines and what they add up to.

    A line has the place in the queue of the first that stands in it. `gated` pods wait for somebody
    to take their gates away; `rejected` ones cannot be read. They stand in no line. `making_room`
    counts the waiting for which others are evicted."""

    revision: Everyone[int]
    pods: Everyone[int]
    devices: Everyone[int]
    gated: Everyone[int]
    rejected: Everyone[int]
    oldest_time: Everyone[str] = ""
    lasting: Everyone[int] = 0
    making_room: Everyone[int] = 0
    lines_count: Everyone[int] = 0
    lines: Everyone[tuple[Line, ...]] = ()
    time: Everyone[str] = ""


class NamespaceRow(Answer, frozen=True):
    """How many live pods a namespace has, and of how many devices they hold shares.

    A device counts once for each pod that holds something of it."""

    namespace: Namespace
    pods: Everyone[int]
    devices: Everyone[int]


class NamespacesAnswer(Answer, frozen=True):
    """The namespaces that have live pods: who holds most comes first, then who has most pods."""

    revision: Everyone[int]
    items: Everyone[tuple[NamespaceRow, ...]] = ()
    time: Everyone[str] = ""
