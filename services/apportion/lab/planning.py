"""Simulate a plan (manifests, lost or new nodes, a policy) on a copy of the state.

If a plan has changes, it is also simulated without them, to show their effect. Its pods are decided
in queue order, as if they were submitted now; a pod that is already placed stays, as with `submit`.
Invariant: the state does not change and nothing is appended."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from msgspec import Struct, structs

from apportion.core.answers.plans import (
    Ahead,
    Beside,
    Leaving,
    MixedGang,
    Outcome,
    PlanAnswer,
    PlannedPod,
    PlanProgress,
    PlanRequest,
    Totals,
)
from apportion.core.answers.reads import StartForecast, WhyRefused, fields_of
from apportion.core.configuration import manifest_config
from apportion.core.devices.cordons import cordoning
from apportion.core.explain.causes import refused_answer, spared_words, waits_for
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.health import failed_devices, unready
from apportion.core.explain.manifest_diff import otherwise
from apportion.core.explain.not_queued import unlooked
from apportion.core.explain.text.answer_text import plan_with_text, planned_with_text
from apportion.core.explain.text.words import Causes, explained_causes, listed, many
from apportion.core.explain.views import gang_models
from apportion.core.explain.why import why, without_times
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PENDING, PodState, State, queue_of, shape_key, spec_digest
from apportion.core.placement.feasibility.causes import Explained
from apportion.core.placement.preemption.moving import unit_of
from apportion.core.placement.queueing.shape_queue import Turn, place_of, turn_of
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.core.workloads.schedulers import Chooser, scheduler_names
from apportion.lab import changes as lab_changes
from apportion.lab.changes import (
    LOST_MAX,
    WHO,
    Changes,
    Displaced,
    WishInvalid,
    submitted_again,
    targets,
)
from apportion.lab.course import Course, copied
from apportion.lab.fitting import EmptyFleet
from apportion.runtime.files.manifests import (
    TooManyPods,
    read_manifest_text,
    read_wish,
    undeclared_queues,
)
from apportion.runtime.ledger.starting import is_command
from apportion_schemas import PodEvicted, PodGone, PodGroupObserved, PodSubmitted, RefusalCode

PODS_MAX: Final = 5_000
WAITING_NAMED: Final = 50
BESIDE_NAMED: Final = 20
# For pods that exceed their queue or quota even without other pods.
WITHIN_NONE: Final = "would exceed the limits even on an idle cluster"
# Singular forms of texts about several pods.
ONE: Final = {"fit": "fits", "are already placed": "is already placed"}
REPLACED: Final = "replaced by the manifest"
STARTS_MAX: Final = 100  # forecasts in a plan, which take up to some ms each
WORST: Final[tuple[Outcome, ...]] = ("never", "not-now", "fits", "unchanged")

Tell = Callable[[PlanProgress], None]
Forecast = Callable[[PodState], StartForecast | None]


class Plan(Struct, frozen=True, kw_only=True):
    """A plan to try: pods and gangs to submit, and changes to make to the cluster."""

    pods: tuple[PodDraft, ...] = ()
    groups: tuple[PodGroupObserved, ...] = ()
    changes: Changes = Changes()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def plan_of(request: PlanRequest, state: State) -> Plan:
    """Return the plan for a request; its manifests are read with the cluster's configuration.

    Raises WishInvalid if the manifests have too many pods."""
    texts = {**({"manifest": request.manifest} if request.manifest else {}), **request.files}
    found = chain.from_iterable(read_manifest_text(text, name) for name, text in texts.items())
    try:
        wish, problems = read_wish(found, manifest_config(state.configuration), most=PODS_MAX)
    except TooManyPods as error:
        raise WishInvalid("manifest", str(error), "plan fewer pods") from None
    return Plan(
        pods=tuple(wish.pods),
        groups=tuple(wish.groups.values()),
        changes=Changes(**fields_of(request, "lose drain add policy"), limits=tuple(wish.limits)),
        problems=tuple(map(str, problems)),
        warnings=(*wish.slips, *wish.notes.values(), *undeclared_queues(wish, state.queues)),
        passed_over=tuple(wish.passed_over),
    )


class Played(NamedTuple):
    """A finished simulation of a plan."""

    course: Course
    planned: dict[str, PodSubmitted]  # by namespace and name
    moved: list[Displaced]  # the displaced pods
    after: dict[str, PodSubmitted]  # the pods submitted again, by old uid

    def end(self, uid: str) -> PodState | None:
        """Return the pod, or the pod that replaced it after evictions; None if it has ended."""
        while uid in self.after:
            uid = self.after[uid].uid
        return self.course.state.pods.get(uid)


def plan(
    state: State, wish: Plan, *, time: str = "", tell: Tell = lambda _: None,
    forecasts_in: Callable[[State], Forecast] | None = None,
) -> PlanAnswer:  # fmt: skip
    """Return the outcome of the plan at the state's revision; the state is not changed.

    `forecasts_in` returns forecasts of starts for the pods of the planned state. Raises WishInvalid
    if the plan is empty or names something unknown, and CourseFailed if its events contradict the
    state."""
    if len(wish.pods) > PODS_MAX:
        raise WishInvalid(
            "manifest",
            rest=f" has {len(wish.pods):,} pods, more than {PODS_MAX:,}",
            fix="plan fewer at once",
        )
    if not (wish.pods or wish.groups or wish.changes or wish.problems):
        raise WishInvalid(
            "manifest",
            "the plan is empty",
            "set at least one of manifest, lose, drain, add and policy",
        )
    live = {pod.full_name: pod for pod in state.pods.values()}
    # Submit pods with a new name, and those that differ from the pending pod of their name.
    new = [
        pod
        for pod in wish.pods
        if (there := live.get(f"{pod.namespace}/{pod.name}")) is None
        or (there.placement is None and _differs(pod, there))
    ]
    today = without = None
    play = partial(_play, state, time=time, tell=tell)
    if wish.changes:
        today = without = play(Changes(), (), (), step="pods already pending")
    if wish.changes and new:
        without = play(Changes(), new, wish.groups, step="without")
    with_it = play(wish.changes, new, wish.groups, step="with the plan")
    drained = wish.changes.drain
    return _Answering(state, with_it, without, today, drained, forecasts_in=forecasts_in).answer(
        wish
    )


def _differs(draft: PodDraft, there: PodState) -> bool:
    wanted = spec_digest(shape_key(draft.shape), submitted(draft, ""))
    return wanted != spec_digest(there.shape_key, there.submitted)


def _play(
    state: State,
    wanted: Changes,
    pods: Sequence[PodDraft],
    groups: Iterable[PodGroupObserved],
    *,
    time: str,
    tell: Tell,
    step: str,
) -> Played:
    course, comers = begun(state, time)
    moved = lab_changes.apply(course, wanted)
    moved += drain(course, wanted.drain, comers.settle)
    planned = {}
    for number, draft in enumerate(pods):
        pod = structs.replace(submitted(draft, f"planned-{number}"), chooser="")
        planned[f"{pod.namespace}/{pod.name}"] = pod
    for there in [pod for pod in course.state.pods.values() if pod.placement is None]:
        if there.full_name in planned:
            course.apply(PodGone(uid=there.uid, reason=REPLACED))
    for group in groups:
        if course.state.groups.get(group.group) is None:
            course.apply(group)
    for pod in planned.values():
        course.apply(pod)
    waiting, done = course.engine.pending, 0
    tell(PlanProgress(step=step, done=0, of=waiting))
    for events in comers.settle():
        done += events
        tell(PlanProgress(step=step, done=min(done, waiting), of=waiting))
    return Played(course, planned, moved, comers.again)


def begun(state: State, time: str) -> tuple[Course, "Comers"]:
    """Copy the state, end all pods that are being evicted in the copy, and return a simulation."""
    course = Course(copied(state), time=time)
    for uid in list(course.state.evictions):  # these pods will end
        course.apply(PodGone(uid=uid))
    return course, Comers(course)


class Comers:
    """Resubmits evicted pods that have a controller. `again` has the new pods by the old uids."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._specs = {uid: pod.submitted for uid, pod in course.state.pods.items()}
        self._gangs = {name: group.observed for name, group in course.state.groups.items()}
        self._seen = 0
        self.again: dict[str, PodSubmitted] = {}
        course.watch(self._observe)

    def _observe(self, change: Change) -> None:
        if isinstance(change.data, PodSubmitted):
            self._specs[change.data.uid] = change.data

    def settle(self) -> Iterator[int]:
        """Let the engine decide until it makes no more decisions; submit evicted pods again.

        Yield the number of events of each decision."""
        for events in self._course.settle():
            for evicted in self._course.evicted[self._seen :]:
                spec = self._specs[evicted.pod]
                if comes_again(self._course.state, spec):
                    anew = submitted_again(spec, f"evicted-{len(self.again)}")
                    self.again[evicted.pod] = anew
                    gang = self._gangs.get(anew.group)
                    # A gang's declaration is dropped with its last pod.
                    if gang is not None and self._course.state.groups.get(gang.group) is None:
                        self._course.apply(gang)
                    self._course.apply(anew)
            self._seen = len(self._course.evicted)
            yield events


def comes_again(state: State, pod: PodSubmitted) -> bool:
    """Return True if an evicted pod is submitted again.

    In Kubernetes, only a pod with an owner is: its controller submits it. Without Kubernetes, the
    watcher submits every pod except commands of `apportion run`."""
    return bool(pod.owner) if state.of_kubernetes else not is_command(pod.owner)


def _totals(state: State) -> Totals:
    there = [node for node in state.nodes.values() if node.present]
    devices = [device for node in there for device in node.devices if device.present]
    placed = sum(pod.placement is not None for pod in state.pods.values())
    return Totals(
        nodes=len(there),
        devices=len(devices),
        devices_used=sum(not device.idle for device in devices),
        devices_unhealthy=sum(
            device.present and not (device.healthy and node.ready)
            for node in there
            for device in node.devices
        ),
        memory_mib=sum(device.device.memory_mib for device in devices),
        memory_free_mib=sum(device.memory_free_mib for device in devices),
        placed=placed,
        waiting=len(state.pods) - placed,
    )


class _Answering:
    """Builds the answer to a plan request from two or three simulations."""

    def __init__(
        self,
        state: State,
        played: Played,
        without: Played | None,
        today: Played | None,
        drained: Iterable[str],
        *,
        forecasts_in: Callable[[State], Forecast] | None,
    ) -> None:
        self._before = state
        self._played = played
        self._state = played.course.state
        self._without = without
        self._today = today
        self._drained = frozenset(drained)
        self._forecasts_in = forecasts_in
        self._forecast: Forecast | None = None  # made for the first pod that would be pending
        self._starts: dict[Hashable, StartForecast | None] = {}
        self._gangs: dict[str, Hashable] = {}  # the shapes of their pending pods
        self._names = scheduler_names(state.configuration)
        self._live = {pod.full_name: pod for pod in state.pods.values()}
        self._displaced = {each.before.uid: each for each in played.moved}
        # Other evicted pods were pending before the course and are pending after it.
        running = {uid for uid, pod in state.pods.items() if pod.placement is not None}
        self._leavers = [gone for gone in played.course.evicted if gone.pod in running]
        self._explainer = Explainer(self._state)
        self._empty = EmptyFleet(self._state)
        self._empty_without = EmptyFleet(without.course.state) if without is not None else None
        waiting = [pod for pod in self._state.pods.values() if pod.phase is PENDING]
        self._waiting = sorted(waiting, key=self._turn)
        self._turns = [self._turn(pod) for pod in self._waiting]
        self._lines: dict[Hashable, int] = {}
        placed = (pod for pod in self._state.pods.values() if pod.placement is not None)
        self._least = min((pod.submitted.priority for pod in placed), default=0)

    def answer(self, wish: Plan) -> PlanAnswer:
        pods = tuple(self._planned(draft) for draft in wish.pods)
        moved = tuple(self._moved(each) for each in self._played.moved)
        outcomes = {pod.outcome for pod in (*pods, *moved)}
        outcome: Outcome = next((each for each in WORST if each in outcomes), "fits")
        came = [pod.uid for pod in self._played.planned.values()]
        came += [each.again.uid for each in self._played.moved]
        ours = {pod.uid for uid in came if (pod := self._played.end(uid)) is not None}
        asked = (self._live.get(f"{pod.namespace}/{pod.name}") for pod in wish.pods)
        ours |= {pod.uid for pod in asked if pod is not None}
        others = [pod for pod in self._waiting if pod.uid not in ours]
        parted = self._parted(wish)
        helped = tuple(self._helped(ours))
        answer = PlanAnswer(
            revision=self._before.revision,
            outcome=outcome,
            summary=_sentence(wish, pods, moved, self._leavers, helped),
            moved_whole=tuple(sorted(parted)),
            moved_along=parted.total(),
            changes=lab_changes.changes_of(wish.changes, self._before),
            pods=pods,
            moved=moved,
            helped=helped,
            evicted=tuple(map(self._leaving, self._leavers)),
            waiting=self._ahead(others),
            before=_totals(self._today.course.state if self._today else self._before),
            after=_totals(self._state),
            problems=wish.problems,
            warnings=wish.warnings,
            passed_over=wish.passed_over,
            mixed_gangs=tuple(
                MixedGang(group=name, models=models)
                for name in sorted({pod.group for pod in (*pods, *moved)})
                if (group := self._state.groups.get(name)) is not None
                and len(models := gang_models(self._state, group)) > 1
            ),
        )
        return plan_with_text(answer)

    def _parted(self, wish: Plan) -> Counter[str]:
        if wish.changes.drain:
            return Counter()
        groups = {each.before.submitted.group for each in self._displaced.values()}
        gangs = {
            name for name in groups
            if (group := self._before.groups.get(name)) is not None and group.min_available > 1
        }  # fmt: skip
        return Counter(
            pod.submitted.group for uid, pod in self._before.pods.items()
            if pod.submitted.group in gangs and pod.placement and uid not in self._displaced
        )  # fmt: skip

    def _planned(self, draft: PodDraft) -> PlannedPod:
        name = f"{draft.namespace}/{draft.name}"
        new, there = self._played.planned.get(name), self._live.get(name)
        if there is not None and there.placement is not None:
            return self._kept(draft, there, there.placement.node)
        about = new or (there.submitted if there is not None else submitted(draft, ""))
        answer = self._of(self._played.end(about.uid), about, waits=there)
        if self._names.chooser(draft.scheduler_name) is Chooser.EXTENDED:
            answer = _chosen_elsewhere(answer)
        if self._without is None:
            return answer
        other = self._without.planned[name].uid if new is not None else about.uid
        # Add the pod's outcome without the changes.
        pod = self._without.end(other)
        if pod is not None and pod.placement is not None:
            return structs.replace(answer, without="fits", node_without=pod.placement.node)
        empty = self._empty_without
        never = pod is not None and empty is not None and empty.lasting(pod) is not None
        return structs.replace(answer, without="never" if never else "not-now")

    def _kept(self, draft: PodDraft, pod: PodState, node: str) -> PlannedPod:
        """Return the outcome of a pod that is already placed."""
        if pod.uid in self._displaced:
            return self._moved(self._displaced[pod.uid])
        if pod.uid not in self._state.pods:
            leaves = self._of(None, pod.submitted, was=node)
            return planned_with_text(
                structs.replace(leaves, evicted=self._before.evictions.get(pod.uid))
            )
        other = otherwise(pod.submitted, submitted(draft, pod.uid)) if _differs(draft, pod) else ()
        return planned_with_text(PlannedPod(
            namespace=draft.namespace, name=draft.name, outcome="unchanged",
            phase=pod.phase.value, differs=other, unready=unready(self._before, pod),
            failed_devices=failed_devices(self._before, pod), priority=pod.submitted.priority,
            group=pod.submitted.group, was=node, node=node,
            placed=why(self._before, pod).placed, beside=tuple(self._beside(pod))[:BESIDE_NAMED],
        ))  # fmt: skip

    def _moved(self, each: Displaced) -> PlannedPod:
        moved = self._of(self._played.end(each.again.uid), each.again, was=each.node)
        return _chosen_elsewhere(moved) if each.before.submitted.chooser else moved

    def _helped(self, ours: set[str]) -> Iterable[PlannedPod]:
        if self._today is None:
            return
        for uid, pod in self._before.pods.items():
            if uid in ours or pod.placement is not None:
                continue
            without, with_it = self._today.end(uid), self._played.end(uid)
            if with_it is None or with_it.placement is None:
                continue
            if without is not None and without.placement is None:
                yield self._of(with_it, with_it.submitted)

    def _of(
        self, pod: PodState | None, about: PodSubmitted, *, was: str = "",
        waits: PodState | None = None,
    ) -> PlannedPod:  # fmt: skip
        """Return the planned outcome of the pod that `about` describes.

        `pod` is its state in the plan, or None if it was evicted and not resubmitted. `waits` is
        the pod of the same name that is already pending in the cluster, if there is one."""
        made = PlannedPod(
            namespace=about.namespace, name=about.name, outcome="not-now", was=was,
            priority=about.priority, group=about.group,
            pending_since=waits.submitted_revision if waits is not None else 0,
            replaces=waits is not None and waits.uid != about.uid, ends=pod is None,
        )  # fmt: skip
        if pod is not None:
            placement = pod.placement
            if placement is None:
                return planned_with_text(self._waits(made, pod))
            group = self._state.groups.get(pod.submitted.group)
            # A gang fits only after all pods evicted for any of its members have left.
            together = group.pods if group is not None and group.together else {pod.uid}
            evicts = tuple(
                f"{each.namespace}/{each.name}" for each in self._leavers
                if each.beneficiary in together
            )  # fmt: skip
            made = structs.replace(
                made, outcome="fits", node=placement.node,
                placed=why(self._state, pod).placed,
                beside=tuple(self._beside(pod))[:BESIDE_NAMED], evicts=evicts,
            )  # fmt: skip
        return planned_with_text(made)

    def _turn(self, pod: PodState) -> tuple[int, int, Turn]:
        # Pods of a gang have one place, and come in the order of their submission.
        rank, revision, _ = place_of(self._state, pod)
        return rank, revision, turn_of(pod)

    def _waits(self, made: PlannedPod, pod: PodState) -> PlannedPod:
        ahead = bisect_left(self._turns, self._turn(pod))
        lasting = self._empty.lasting(pod)
        if lasting is None:
            refused = self._refused(pod)
            # Name the drained nodes or devices if only they could take the pod.
            near = {
                miss.device if miss.code is RefusalCode.DEVICE_CORDONED else miss.node
                for miss in (refused.nearest if refused is not None else ())
            }
            drained = tuple(sorted(near)) if near <= self._drained else ()
            line = self._line(self._waits_for(pod), refused)
            return structs.replace(
                made, refused=refused, ahead=ahead, while_cordoned=drained, line=line,
                awaits=self._awaits(pod) if refused is None else "",
                start=self._start(pod),
            )  # fmt: skip
        # The pod fits not even the empty fleet because of its queue, its quota or the fleet.
        shape = self._explainer.wishes(pod)
        never = Explained(lasting, never=True, shape=shape)
        if lasting.queue is not None or lasting.quota is not None:
            limit = self._explainer.never_within(pod, lasting) or lasting
            never = Explained(lasting, never=False, limit=limit, shape=shape)
        elif pod.refusal is not None:
            whole = self._explainer.explained(pod, pod.refusal)
            never = whole if whole.never else never
        refused = refused_answer(self._explainer, pod, never)
        line = self._line(waits_for(never), refused)
        return structs.replace(made, outcome="never", refused=refused, ahead=ahead, line=line)

    def _start(self, pod: PodState) -> StartForecast | None:
        about, group = pod.submitted, self._state.groups.get(pod.submitted.group)
        if group is not None and about.group not in self._gangs:
            pods = [self._state.pods[uid] for uid in group.pods]
            shapes = Counter(each.shape_key for each in pods if each.placement is None)
            self._gangs[about.group] = frozenset(shapes.items())
        # Equal requests have equal forecasts. The time tells pods that have waited from new ones.
        key = (
            pod.shape_key, about.priority, queue_of(self._state, pod), pod.submitted_time,
            self._gangs.get(about.group), bool(about.gates), about.chooser,
            frozenset(pod.refusal.reasons) if pod.refusal is not None else None,
        )  # fmt: skip
        if key not in self._starts and len(self._starts) < STARTS_MAX:
            if self._forecast is None and self._forecasts_in is not None:
                self._forecast = self._forecasts_in(self._state)
            self._starts[key] = self._forecast(pod) if self._forecast is not None else None
        return self._starts.get(key)

    def _refused(self, pod: PodState) -> WhyRefused | None:
        if pod.refusal is None:
            return None
        explained = self._explainer.explained(pod, pod.refusal)
        unbelieved = self._explainer.room.unbelieved(pod, pod.refusal)
        answer = refused_answer(self._explainer, pod, explained, unbelieved)
        if pod.submitted.priority <= self._least:
            return answer  # no pod has a lower priority
        return structs.replace(answer, spared=spared_words(self._explainer, pod))

    def _awaits(self, pod: PodState) -> str:
        return unlooked(self._state, pod) or "no scheduler has decided yet"

    def _waits_for(self, pod: PodState) -> Hashable:
        if pod.refusal is not None:
            return waits_for(self._explainer.explained(pod, pod.refusal))
        about = pod.submitted
        known = (tuple(about.gates), about.chooser, about.group)
        return known if unlooked(self._state, pod) else ()

    def _line(self, what_for: Hashable, refused: WhyRefused | None) -> int:
        """Return the id of the group of pods that wait for `what_for`.

        Refused pods share a group only if their causes and nearest device are the same, too."""
        if refused is not None:
            causes = tuple((each.code, each.nodes) for each in refused.causes)
            near = tuple((each.node, each.device, each.needed) for each in refused.nearest[:1])
            what_for = (what_for, causes, near, bool(refused.spared))
        return self._lines.setdefault(what_for, len(self._lines) + 1)

    def _beside(self, pod: PodState) -> Iterable[Beside]:
        placement = pod.placement
        if placement is None:
            return
        mine = {share.device for share in placement.shares}
        for other in self._state.nodes[placement.node].pods.values():
            for share in other.placement.shares if other.placement else ():
                if share.device in mine and other.uid != pod.uid:
                    yield Beside(
                        namespace=other.submitted.namespace, pod=other.submitted.name,
                        device=share.device, memory_mib=share.memory_mib, cores=share.cores,
                    )  # fmt: skip

    def _leaving(self, evicted: PodEvicted) -> Leaving:
        pod = self._played.end(evicted.pod)
        return Leaving(
            namespace=evicted.namespace, pod=evicted.name, node=evicted.node,
            priority=evicted.priority, beneficiary=evicted.beneficiary_name,
            budgets=evicted.budgets,
            to=pod.placement.node if pod is not None and pod.placement is not None else "",
        )  # fmt: skip

    def _ahead(self, pods: Sequence[PodState]) -> tuple[Ahead, ...]:
        """Return the first pending pods, each with the number of pods with the same cause."""
        keys = [(pod.submitted.priority, self._waits_for(pod)) for pod in pods]
        alike = Counter(keys)
        lines = {key: number for number, key in enumerate(alike, 1)}
        found = []
        for pod, key in islice(zip(pods, keys, strict=True), WAITING_NAMED):
            cause = Causes("", (self._awaits(pod),))
            if pod.refusal is not None:
                explained = self._explainer.explained(pod, pod.refusal)
                cause = explained_causes(explained, short=True)
            found.append(Ahead(
                namespace=pod.submitted.namespace, pod=pod.submitted.name,
                priority=pod.submitted.priority, submitted_revision=pod.submitted_revision,
                cause=cause.sentence, line=lines[key], alike=alike[key],
                lead=cause.lead, clauses=cause.clauses,
            ))  # fmt: skip
        return tuple(found)


def _chosen_elsewhere(planned: PlannedPod) -> PlannedPod:
    """Return the planned pod without a start, because a kube-scheduler chooses its node.

    The plan decides for such a pod, too, but no forecast knows when that scheduler does."""
    if planned.start is None or planned.start.unknown == "gated":  # as in `why`, a gate is first
        return planned
    return structs.replace(planned, start=without_times(planned.start, "other-scheduler"))


def _sentence(
    wish: Plan, pods: Sequence[PlannedPod], moved: Sequence[PlannedPod],
    leavers: Sequence[PodEvicted], helped: Sequence[PlannedPod],
) -> str:  # fmt: skip
    """Return the answer in one sentence. An evicted pod that is also in `pods` is counted once."""
    parts, named = [], {(pod.namespace, pod.name) for pod in pods}
    evicted = sum((gone.namespace, gone.name) not in named for gone in leavers)
    if pods:
        parts.append(_counted(pods, "planned"))
    if wish.changes.lose or wish.changes.drain:
        nobody = "no pod runs there" if evicted else "no pod would be displaced"
        parts.append(_counted(moved, "moved") if moved else nobody)
    if evicted:
        what = "other pod" if pods or moved else "pod"
        parts.append(f"{many(evicted, what)} would be evicted")
    if helped:
        started = listed([f"{pod.namespace}/{pod.name}" for pod in helped])
        parts.append(f"{many(len(helped), 'pending pod')} would start: {started}")
    if not parts:
        parts.append("no running pod would change")
    return "; ".join(parts)


def _counted(pods: Sequence[PlannedPod], what: str) -> str:
    fits = "fit" if what == "planned" else "would move"
    # Pods can never fit because of the fleet, of limits, or of both.
    refused = [pod.refused for pod in pods if pod.outcome == "never" and pod.refused is not None]
    limited = sum(not each.never for each in refused)
    never = "can never be placed" if limited else "would not fit even on an empty fleet"
    texts: dict[Outcome, str] = {
        "fits": fits,
        "unchanged": "are already placed",
        "not-now": "would be pending",
        "never": WITHIN_NONE if limited and limited == len(refused) else never,
    }
    whose = "pod" if what == "planned" else "displaced pod"
    if len(pods) == 1:
        said = texts[pods[0].outcome]
        return f"the {whose} {ONE.get(said, said)}"
    counts = {outcome: sum(pod.outcome == outcome for pod in pods) for outcome in texts}
    said = ", ".join(
        f"{counts[outcome]:,} {ONE.get(text, text) if counts[outcome] == 1 else text}"
        for outcome, text in texts.items() if counts[outcome]
    )  # fmt: skip
    return f"of {len(pods):,} {'pods' if what == 'planned' else 'displaced pods'}, {said}"


# What `apportion drain` does without Kubernetes, on a copy: cordon, and move pod by pod. Each pod,
# or gang placed all or none, ends and is placed again before the next one ends. Invariant: the
# order is queue order, by priority and then by revision, as in `apportion drain`.

REASON = "drain"


def drain(
    course: Course, names: Iterable[str], settle: Callable[[], Iterator[int]]
) -> list[Displaced]:
    """Cordon the named nodes and devices, then evict their pods; `settle` runs the engine.

    Raises WishInvalid if a node or device is unknown, or if too many pods run there."""
    there: dict[str, PodState] = {}
    for target in targets(course.state, names):
        course.apply(cordoning(target.node.name, target.device, by=WHO, reason=REASON))
        there |= {pod.uid: pod for pod in target.pods()}
    displaced = list[Displaced]()
    for unit in _units(course.state, there.values()):
        live = [pod for pod in unit if pod.uid in course.state.pods and pod.placement is not None]
        if not any(is_command(pod.submitted.owner) for pod in live):  # a command is not moved
            displaced += move(course, live, f"{REASON}-{len(displaced)}")
            for _ in settle():
                pass
    return displaced


def move(course: Course, unit: Iterable[PodState], prefix: str) -> list[Displaced]:
    """End the placed pods of a unit, and submit them again with uids that begin with `prefix`."""
    displaced = [
        Displaced(pod, pod.placement.node, submitted_again(pod.submitted, f"{prefix}-{number}"))
        for number, pod in enumerate(unit) if pod.placement is not None
    ]  # fmt: skip
    for each in displaced:
        course.apply(each.again)
    for each in displaced:
        course.apply(PodGone(uid=each.before.uid, reason=REASON))
    return displaced


def _units(state: State, pods: Iterable[PodState]) -> list[tuple[PodState, ...]]:
    units: dict[str, tuple[PodState, ...]] = {}
    for pod in sorted(pods, key=turn_of):
        unit = unit_of(state, pod)
        units.setdefault(unit[0].uid, unit)
    if sum(map(len, units.values())) > LOST_MAX:
        rest = f" affects more than {LOST_MAX:,} pods"
        raise WishInvalid("drain", rest=rest, fix="drain fewer nodes at once")
    return list(units.values())
