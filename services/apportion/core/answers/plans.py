"""The answer to "what if": which pods would fit, move, be evicted or stay pending.

Invariant: the answer contains only what the engine decided on a copy of the state."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from apportion.core.answers.reads import (
    Answer,
    ErrorAnswer,
    FailedDevice,
    StartForecast,
    WhyPlaced,
    WhyRefused,
)
from apportion.core.answers.visibility import Everyone, Made, Names, Namespace, OrNone, People
from apportion_schemas import PodEvicted

# `not-now`: stays pending. `never`: fits no empty node. `unchanged`: keeps its node
Outcome = Literal["fits", "not-now", "never", "unchanged"]


class Beside(Answer, frozen=True):
    """A pod that already uses a device on which the plan would place another pod."""

    namespace: Namespace
    pod: str
    device: Everyone[str]
    memory_mib: Everyone[int]
    cores: Everyone[int]


class Leaving(Answer, frozen=True):
    """A pod that the plan would evict to make room for the pod `beneficiary`."""

    namespace: Namespace
    pod: str
    node: Everyone[str]
    priority: int
    beneficiary: Names[str]
    budgets: tuple[str, ...] = ()
    to: Everyone[str] = ""  # its next node, if any


class PlanChange(Answer, frozen=True):
    """One change that the plan assumes, such as a lost node."""

    kind: Everyone[Literal["lose", "drain", "add", "policy", "limit"]]
    node: Everyone[str] = ""
    device: Everyone[str] = ""
    value: Everyone[str] = ""  # the added nodes, or the policy
    queue: Everyone[str] = ""
    quota: Names[str] = ""
    words: Made[str] = ""


class ManifestChange(Answer, frozen=True):
    """A field that differs between a live pod (`was`) and its manifest (`wanted`)."""

    path: str
    was: str
    wanted: str


class Ahead(Answer, frozen=True):
    """A pending pod that is scheduled before the planned pod, and why it is pending."""

    namespace: Namespace
    pod: str
    priority: int
    submitted_revision: Everyone[int]
    cause: str
    line: int = 0  # equal for pods with one priority and reason
    alike: int = 0  # number of pods with this `line`
    lead: str = ""
    clauses: tuple[str, ...] = ()


class PlannedPod(Answer, frozen=True):
    """The outcome of the plan for one pod: whether and where it would run, and why."""

    namespace: Namespace
    name: str
    outcome: Everyone[Outcome]
    sentence: Made[str] = ""
    text: Made[str] = ""  # without the pod's name
    cause: Made[str] = ""  # why it is not placed, or a note about its node
    line: int = 0  # equal for pods with the same cause
    priority: int = 0
    group: str = ""
    was: Everyone[str] = ""  # current node
    node: Everyone[str] = ""
    placed: Everyone[WhyPlaced | None] = None  # if it fits or keeps its node
    refused: Everyone[WhyRefused | None] = None
    beside: tuple[Beside, ...] = ()
    evicts: Names[tuple[str, ...]] = ()
    ahead: int = 0  # pods scheduled earlier
    without: Everyone[Outcome | Literal[""]] = ""  # without the plan's changes
    node_without: Everyone[str] = ""
    pending_since: int = 0  # revision, or 0
    replaces: bool = False  # the pending pod has another spec
    phase: str = ""
    differs: tuple[ManifestChange, ...] = ()
    failed_devices: tuple[FailedDevice, ...] = ()
    unready: str = ""
    awaits: str = ""  # why it is pending if not refused
    ends: bool = False  # evicted and not resubmitted
    evicted: OrNone[PodEvicted | None] = None  # already being evicted
    while_cordoned: tuple[str, ...] = ()  # what could run it once uncordoned
    start: OrNone[StartForecast | None] = None  # if pending; of at most 100 different requests


class Totals(Answer, frozen=True):
    """The size and the usage of the cluster after all decisions of the plan."""

    nodes: Everyone[int]
    devices: Everyone[int]
    devices_used: Everyone[int]  # with at least one share
    devices_unhealthy: Everyone[int]  # failed, or on a node that is not ready
    memory_mib: Everyone[int]  # of all present devices
    memory_free_mib: Everyone[int]
    placed: Everyone[int]
    waiting: Everyone[int]


class MixedGang(Answer, frozen=True):
    """A gang whose pods would get devices of different models: the number of pods per model."""

    group: Names[str]
    models: Everyone[dict[str, int]]


class PlanAnswer(Answer, frozen=True):
    """The outcome of a plan, with the affected pods, and the cluster before and after it."""

    revision: Everyone[int]
    outcome: Everyone[Outcome]  # the worst of any pod
    sentence: Made[str] = ""
    summary: Everyone[str] = ""  # without `moved_whole`
    moved_whole: Names[tuple[str, ...]] = ()  # gangs that a drain would move
    moved_along: Everyone[int] = 0  # their pods elsewhere
    changes: Everyone[tuple[PlanChange, ...]] = ()
    pods: Everyone[tuple[PlannedPod, ...]] = ()  # of the manifest
    moved: Everyone[tuple[PlannedPod, ...]] = ()  # on a lost node or device
    helped: Everyone[tuple[PlannedPod, ...]] = ()  # pending, and would be placed
    evicted: Everyone[tuple[Leaving, ...]] = ()
    waiting: Everyone[tuple[Ahead, ...]] = ()  # first pods that stay pending
    before: Everyone[Totals | None] = None  # without the plan
    after: Everyone[Totals | None] = None
    problems: People[tuple[str, ...]] = ()  # rejected documents
    warnings: People[tuple[str, ...]] = ()  # names and amounts that are probably unintended
    passed_over: People[tuple[str, ...]] = ()  # neither workloads nor limits
    mixed_gangs: Everyone[tuple[MixedGang, ...]] = ()


class PlanRequest(Answer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/plan`; at least one field must be set."""

    manifest: str = ""  # YAML or JSON
    files: dict[str, str] = {}  # further manifests, by name
    lose: tuple[str, ...] = ()  # nodes and devices, by id or unique prefix
    drain: tuple[str, ...] = ()  # nodes and devices; their pods move one by one
    add: tuple[str, ...] = ()  # such as `4x8xH100-80GB`: four nodes with eight devices
    policy: str = ""


class PlanProgress(Answer, frozen=True):
    """The progress of a plan: the current step, and how many of its pods are decided."""

    step: Everyone[str]
    done: Everyone[int]
    of: Everyone[int]


class PlanLine(Answer, frozen=True, omit_defaults=True):
    """One line of a streamed plan: progress, or at the end the answer or an error."""

    progress: PlanProgress | None = None
    answer: PlanAnswer | None = None
    error: ErrorAnswer | None = None
    status: int = 200  # of HTTP


MOVES_MAX: Final = 1_000

# Why no move is proposed. `no-capacity`: too few free devices in total. `pods-stay`: moving the
# pods that may be moved would not make room. `no-place`: moved pods would fit nowhere else, or only
# on idle nodes.
# `frees-less`: more devices would be moved than freed. `moves-max`, `lost-max`: beyond the limits
# of the request. `disruption-budget`: a budget does not allow it. `search-limit`: not tried.
# `other-cause`: the pod is pending for a cause that no move removes.
NoMove = Literal[
    "no-capacity", "pods-stay", "no-place", "frees-less", "moves-max", "lost-max",
    "disruption-budget", "search-limit", "other-cause",
]  # fmt: skip


class DefragMove(Answer, frozen=True):
    """A running pod that would be moved."""

    uid: str
    namespace: str
    pod: str
    node: str  # current node
    to: str  # a gang's pod may restart on its node
    gpus: float  # that the pod has, as whole devices
    lost_gpu_hours: float  # since its start or last checkpoint
    gang: str = ""  # moved as a whole


class DefragStep(Answer, frozen=True):
    """Moves that let one pending pod or gang fit, or that empty one node."""

    kind: Literal["pod", "gang", "node"]
    name: str  # of the pod, gang or node
    pods: tuple[str, ...]  # pods that would be placed: the beneficiary first, then other pods
    nodes: tuple[str, ...]  # cordoned while the pods are moved
    gpus_freed: float  # that the beneficiary gets, or that the node has
    gpus_moved: float
    lost_gpu_hours: float
    moves: tuple[DefragMove, ...]


class DefragBlocked(Answer, frozen=True):
    """A pending pod or gang, or a node in use, for which no move is proposed."""

    kind: Literal["pod", "gang", "node"]
    name: str
    reason: NoMove
    alike: int = 1  # number of pending pods with the same requests
    pods: tuple[str, ...] = ()  # first pods that fit nowhere else, or that may not be moved
    gpus: float = 0.0  # requested by the pod or gang, at least
    free_gpus: float = 0.0  # on nodes that take pods


class DefragAnswer(Answer, frozen=True):
    """Moves that would end fragmentation, in the order in which they would be made."""

    revision: int
    steps: tuple[DefragStep, ...] = ()
    blocked: tuple[DefragBlocked, ...] = ()
    of_kubernetes: bool = False  # then controllers recreate moved pods in an unknown order
    other_causes: int = 0  # pending pods that no move helps
    empty_nodes: int = 0  # nodes that are empty already; counted if the request has `free_nodes`
    empty_after: int = 0  # with those that the steps empty: a gang's step can empty several


class DefragRequest(Answer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/defrag`. Without `free_nodes`, pending pods are to fit."""

    pods: tuple[str, ...] = ()  # pods and gangs as `namespace/name`; all pending ones if empty
    # Empty nodes until this many are empty, whatever is pending. Cordoned ones do not count.
    free_nodes: Annotated[int, Meta(ge=0, le=MOVES_MAX)] = 0
    moves_max: Annotated[int, Meta(ge=1, le=MOVES_MAX)] = 10  # pods
    lost_gpu_hours_max: Annotated[float, Meta(ge=0)] | None = None


class DefragLine(Answer, frozen=True, omit_defaults=True):
    """One line of a streamed answer about moves, as `PlanLine`."""

    progress: PlanProgress | None = None
    answer: DefragAnswer | None = None
    error: ErrorAnswer | None = None
    status: int = 200  # of HTTP
