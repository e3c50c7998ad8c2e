"""The answer to "what if": which pods would fit, move, be evicted or stay pending.

Invariant: the answer contains only what the engine decided on a copy of the state."""

from typing import Literal

from apportion.core.answers.reads import Answer, ErrorAnswer, FailedDevice, WhyPlaced, WhyRefused
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
    """One change that the plan assumes, such as a lost node; `words` describes it.

    `value` specifies the added nodes, or names the policy. A limit has a `queue`, or a `quota` with
    its namespace."""

    kind: Everyone[Literal["lose", "drain", "add", "policy", "limit"]]
    node: Everyone[str] = ""
    device: Everyone[str] = ""
    value: Everyone[str] = ""
    queue: Everyone[str] = ""
    quota: Names[str] = ""
    words: Made[str] = ""


class ManifestChange(Answer, frozen=True):
    """A field that differs between a live pod (`was`) and its manifest (`wanted`)."""

    path: str
    was: str
    wanted: str


class Ahead(Answer, frozen=True):
    """A pending pod that is scheduled before the planned one, and why it is pending."""

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
    """What the plan means for one pod. `was` is the pod's current node, if any.

    `placed` is set if the pod fits or keeps its node; otherwise `refused` is set. For the outcome
    `never`, `refused` has what an empty fleet lacks. `pending_since` is the revision since which a
    pod of this name is pending, or 0. `without` is the outcome without the plan's changes, if it
    has any. `ahead` counts pending pods that are scheduled earlier. `sentence` is made from the
    other fields; `text` leaves out the pod's name. `cause` is why the pod is not placed, or a note
    about the node that it keeps, made from `phase`, `differs`, `failed_devices` and `unready`.
    `awaits` is why a pod that was not refused is pending. Pods of a list with the same cause have
    one `line` number, from 1. `replaces`: the pending pod of this name has another spec. `evicted`:
    the pod is already being evicted. `ends`: the plan would evict the pod, and nothing resubmits
    it. `while_cordoned` lists the drained nodes and devices that could run the pod, if no others
    can."""

    namespace: Namespace
    name: str
    outcome: Everyone[Outcome]
    sentence: Made[str] = ""
    text: Made[str] = ""
    cause: Made[str] = ""
    line: int = 0
    priority: int = 0
    group: str = ""
    was: Everyone[str] = ""
    node: Everyone[str] = ""
    placed: Everyone[WhyPlaced | None] = None
    refused: Everyone[WhyRefused | None] = None
    beside: tuple[Beside, ...] = ()
    evicts: Names[tuple[str, ...]] = ()
    ahead: int = 0
    without: Everyone[Outcome | Literal[""]] = ""
    node_without: Everyone[str] = ""
    pending_since: int = 0
    replaces: bool = False
    phase: str = ""
    differs: tuple[ManifestChange, ...] = ()
    failed_devices: tuple[FailedDevice, ...] = ()
    unready: str = ""
    awaits: str = ""
    ends: bool = False
    evicted: OrNone[PodEvicted | None] = None
    while_cordoned: tuple[str, ...] = ()


class Totals(Answer, frozen=True):
    """The size and the usage of the cluster after all decisions of the plan."""

    nodes: Everyone[int]
    devices: Everyone[int]
    devices_used: Everyone[int]  # with at least one share
    devices_unhealthy: Everyone[int]  # failed, or on a node that is not ready
    memory_mib: Everyone[int]
    memory_free_mib: Everyone[int]
    placed: Everyone[int]
    waiting: Everyone[int]


class MixedGang(Answer, frozen=True):
    """A gang whose pods would get devices of different models: the number of pods per model."""

    group: Names[str]
    models: Everyone[dict[str, int]]


class PlanAnswer(Answer, frozen=True):
    """The outcome of a plan as of `revision`: a sentence, followed by the affected pods.

    `outcome` is the worst outcome of any pod. `pods` are those of the manifest. `moved` pods are on
    a lost node or device and count as resubmitted, even if the manifest contains them. `helped`
    pods are pending and would be placed. `evicted` lists each evicted pod once. `waiting` are the
    first pods that stay pending, in queue order. `before` is the cluster without the plan; for a
    plan with changes, after all decisions that are possible without them. `after` is the cluster
    with the plan. `when` says when pending pods start, as far as known. `problems` are rejected
    documents with field, value and fix. `warnings` are names and amounts that are probably
    unintended. `passed_over` names documents that are neither workloads nor limits. `summary` is
    the sentence without gangs that a drain would move whole: those are `moved_whole`, and
    `moved_along` counts their pods elsewhere."""

    revision: Everyone[int]
    outcome: Everyone[Outcome]
    sentence: Made[str] = ""
    summary: Everyone[str] = ""
    moved_whole: Names[tuple[str, ...]] = ()
    moved_along: Everyone[int] = 0
    changes: Everyone[tuple[PlanChange, ...]] = ()
    pods: Everyone[tuple[PlannedPod, ...]] = ()
    moved: Everyone[tuple[PlannedPod, ...]] = ()
    helped: Everyone[tuple[PlannedPod, ...]] = ()
    evicted: Everyone[tuple[Leaving, ...]] = ()
    waiting: Everyone[tuple[Ahead, ...]] = ()
    before: Everyone[Totals | None] = None
    after: Everyone[Totals | None] = None
    when: Everyone[str] = ""
    problems: People[tuple[str, ...]] = ()
    warnings: People[tuple[str, ...]] = ()
    passed_over: People[tuple[str, ...]] = ()
    mixed_gangs: Everyone[tuple[MixedGang, ...]] = ()


class PlanRequest(Answer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/plan`; at least one field must be set.

    `manifest` is YAML or JSON text; `files` are further manifests by the name that errors show.
    `lose` and `drain` list nodes and devices, by id or unique prefix; drained pods move one by one,
    as with `apportion drain`. `add` is like `4x8xH100-80GB`: four nodes with eight devices each."""

    manifest: str = ""
    files: dict[str, str] = {}
    lose: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    policy: str = ""


class PlanProgress(Answer, frozen=True):
    """The progress of a plan: the current step, and how many of its pods are decided."""

    step: Everyone[str]
    done: Everyone[int]
    of: Everyone[int]


class PlanLine(Answer, frozen=True, omit_defaults=True):
    """One line of a streamed plan: progress, or at the end the answer or an error.

    `status` is the HTTP status, which cannot be changed once the first line is sent."""

    progress: PlanProgress | None = None
    answer: PlanAnswer | None = None
    error: ErrorAnswer | None = None
    status: int = 200
