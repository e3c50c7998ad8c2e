"""The answer to "what if": what of a plan fits, who moves, who goes, and who waits.

Structs as in `reads`, with the same rules. Invariant: an answer says only what the engine decided
over a copy of the state; nothing of it is in the ledger."""

from typing import Literal

from apportion.core.answers.reads import Answer, ErrorAnswer, FailedDevice, WhyPlaced, WhyRefused
from apportion.core.answers.visibility import Everyone, Made, Names, Namespace, OrNone, People
from apportion_schemas import PodEvicted

Outcome = Literal["fits", "not-now", "never", "unchanged"]
"""What becomes of a pod: `fits`; `not-now`, it would wait; `never`, no node of the fleet could
take it even if all were empty; `unchanged`, it has a place already and keeps it."""


class Beside(Answer, frozen=True):
    """Another pod on a device that the planned one would share."""

    namespace: Namespace
    pod: str
    device: Everyone[str]
    memory_mib: Everyone[int]
    cores: Everyone[int]


class Leaving(Answer, frozen=True):
    """A pod that would be evicted, and for whom; `to` is where it would go then, if anywhere."""

    namespace: Namespace
    pod: str
    node: Everyone[str]
    priority: int
    beneficiary: Names[str]
    budgets: tuple[str, ...] = ()
    to: Everyone[str] = ""


class PlanChange(Answer, frozen=True):
    """One thing that would be otherwise, and `words` for it.

    What is lost or drained is a `node`, or a `device` of it. `value` is what was written of nodes
    that are added, or the policy. A limit is a `queue`, or a `quota` with its namespace."""

    kind: Everyone[Literal["lose", "drain", "add", "policy", "limit"]]
    node: Everyone[str] = ""
    device: Everyone[str] = ""
    value: Everyone[str] = ""
    queue: Everyone[str] = ""
    quota: Names[str] = ""
    words: Made[str] = ""


class ManifestChange(Answer, frozen=True):
    """What a manifest asks for otherwise than its live pod did: the field, and both values."""

    path: str
    was: str
    wanted: str


class Ahead(Answer, frozen=True):
    """A pod that waits and whose turn comes first, with what it waits for.

    Those of one priority that would wait for the same have one `line`, counted from 1, and `alike`
    counts all of them, those that are not named too. `cause` is `lead`, then `clauses` with
    semicolons between them."""

    namespace: Namespace
    pod: str
    priority: int
    submitted_revision: Everyone[int]
    cause: str
    line: int = 0
    alike: int = 0
    lead: str = ""
    clauses: tuple[str, ...] = ()


class PlannedPod(Answer, frozen=True):
    """What would become of one pod. `was` is the node that it has now, where it has one.

    `placed` if it fits or keeps its place, `refused` if not: why, and for one that never fits what
    an empty fleet lacks. `pending_since` is the revision since which a pod of its name waits, or 0.
    `without` is the outcome without the changes, and empty where the plan has none. `evicts` are
    the names of the pods that would go for it. `ahead` counts the pods that would still wait and
    have their turn before it; the first of them are in the answer's `waiting`.

    `sentence` is made from the other fields: `text`, without the pod's name, says it with `cause`,
    which is why it is not placed, or what is to be said of the place that it keeps: `phase`, what
    `differs` in the manifest, `failed_devices` and `unready` of its node. `awaits` is for what a
    pod waits that was not refused. Of one list, those that wait for the same have one `line`,
    counted from 1. `replaces`: the pod that waits asks for something else. `evicted`: it is to
    leave already; `ends`: it would be evicted, and comes not again. `while_cordoned` are the
    drained nodes and devices that alone could hold it."""

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
    """The cluster in a few numbers, once all is decided that can be.

    `devices` that are there; `devices_used` hold at least one share, and `devices_broken` are
    unhealthy or of a node that is not ready, whether they hold one or not; memory is of all these
    devices."""

    nodes: Everyone[int]
    devices: Everyone[int]
    devices_used: Everyone[int]
    devices_broken: Everyone[int]
    memory_mib: Everyone[int]
    memory_free_mib: Everyone[int]
    placed: Everyone[int]
    waiting: Everyone[int]


class MixedGang(Answer, frozen=True):
    """A gang whose pods hold devices of different models: how many pods hold some of each."""

    group: Names[str]
    models: Everyone[dict[str, int]]


class PlanAnswer(Answer, frozen=True):
    """What would happen, as of `revision`: a sentence, then the pods that it is about.

    `outcome` is the worst of them. `changes` are the wishes. `pods` are those of the manifest;
    `moved` held a place on a node or device that is lost, and are taken as submitted again, also
    where they are of the manifest; `helped` wait now and would have a place. `evicted` have a place
    now and would go for others, each once. `waiting` are the first that would wait then, in the
    order of their turns. `before` is the cluster without the plan, of a plan with changes once all
    is decided that can be without them, so not what it holds at `revision`; `after` is the cluster
    with the plan. `when`: for pods that would wait, what is known of how long. `problems` are
    documents that were refused, with field, value and fix; `warnings` are names and amounts in the
    others that are probably not meant so; `passed_over` are documents that are neither workloads
    nor limits, by name. `mixed_gangs` are those of the pods that it is about which would be on
    devices of different models. `summary` is the sentence without the gangs that a drain would move
    whole, which are `moved_whole`, with the number of their pods elsewhere."""

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
    """The body of `POST /api/v1/plan`: at least one of its fields is to say something.

    `manifest` is YAML or JSON text, and so is each of `files`, by the name under which problems are
    told; `lose` names nodes and devices, of which enough of the id will do, and so does `drain`,
    whose pods are moved one by one as `apportion drain` does it; `add` is as in `4x8xH100-80GB`,
    four nodes of eight; `policy` is for nodes and devices alike."""

    manifest: str = ""
    files: dict[str, str] = {}
    lose: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    policy: str = ""


class PlanProgress(Answer, frozen=True):
    """How far a plan is: the step in words, and pods decided of those there are to decide."""

    step: Everyone[str]
    done: Everyone[int]
    of: Everyone[int]


class PlanLine(Answer, frozen=True, omit_defaults=True):
    """One line for who wants to hear how far a plan is: a progress, or last the answer or error.

    `status` is that of HTTP, which has none left once the first line is sent."""

    progress: PlanProgress | None = None
    answer: PlanAnswer | None = None
    error: ErrorAnswer | None = None
    status: int = 200
