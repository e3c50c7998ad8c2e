"""Find moves of running pods that let pending pods and gangs fit, or that empty nodes.

Each step is found by `MoveSearch`, and then simulated as `apportion defrag --apply` carries it out:
its nodes are cordoned, its pods end and are submitted again, unit by unit, and the cordons are
lifted. The cheapest step comes first: the one that loses the least work, then the one that moves
the fewest devices. If the simulation fails, the unit at fault is left out, and the search repeats.

Invariants: in a proposed step, each moved pod is placed again without an eviction, the beneficiary
is placed, and fewer devices are moved than freed. No pod is moved twice. The state is unchanged."""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Literal, NamedTuple

from apportion.core.answers.plans import (
    DefragAnswer,
    DefragBlocked,
    DefragMove,
    DefragRequest,
    DefragStep,
    NoMove,
    PlanProgress,
)
from apportion.core.devices.cordons import cordoning, lifting
from apportion.core.devices.worth import DEVICE
from apportion.core.explain.health import unready
from apportion.core.ledger.moments import HOUR, SECOND, micros_of
from apportion.core.ledger.state import PENDING, NodeState, PodState, State
from apportion.core.placement.gangs import deficit_of
from apportion.core.placement.preemption.moving import (
    UNIT_MAX,
    Found,
    MoveSearch,
    lost_work,
    unit_of,
    worth,
)
from apportion.core.placement.preemption.victims import exceeded
from apportion.core.placement.queueing.shape_queue import place_of, turn_of
from apportion.core.reports.lost import cause_of
from apportion.core.reports.meters import Part
from apportion.lab.changes import WHO, Displaced, WishInvalid
from apportion.lab.course import Course, copied
from apportion.lab.planning import begun, comes_again, move

TRIES_MAX: Final = 32  # simulated steps; each copies the state
KINDS_MAX: Final = 64  # beneficiaries that are searched for, in the order of the queue
NAMED_MAX: Final = 5
BLOCKED_MAX: Final = 100
REASON: Final = "defrag"
DAEMON: Final = "DaemonSet/"
HOUR_S: Final = HOUR / SECOND
DIGITS: Final = 3
FRAGMENTED: Final = frozenset((Part.FRAGMENTED, Part.TOPOLOGY))

Tell = Callable[[PlanProgress], None]


def defrag(
    state: State, request: DefragRequest, *, time: str = "", tell: Tell = lambda _: None,
    is_late: Callable[[], bool] = lambda: False,
) -> DefragAnswer:  # fmt: skip
    """Return the moves for the request at the state's revision; the state is not changed.

    Once `is_late` returns True, the search ends, and the answer has the steps found until then.
    Raises WishInvalid if a pod or gang is not pending, and CourseFailed."""
    pending = [pod for pod in state.pods.values() if pod.phase is PENDING]
    names = {pod.full_name for pod in pending} | {pod.submitted.group for pod in pending}
    for name in request.pods:
        if name not in names:
            said = f"no pending pod or gang {name!r} at revision {state.revision}"
            fix = "write NAMESPACE/NAME; list them with `apportion get pods --phase pending`"
            raise WishInvalid("pods", said, fix)
    course, comers = begun(state, time)
    for _ in comers.settle():
        pass
    found = _Defrag(course, request, tell, is_late)
    empty = found.empty()
    if request.free_nodes:
        found.free_nodes()
    else:
        found.make_fit()
    after = found.empty()
    enough = bool(request.free_nodes) and after >= request.free_nodes
    return DefragAnswer(
        revision=state.revision,
        steps=tuple(found.steps),
        blocked=() if enough else tuple(found.blocked.values())[:BLOCKED_MAX],
        of_kubernetes=state.of_kubernetes,
        other_causes=found.other_causes,
        empty_nodes=empty if request.free_nodes else 0,
        empty_after=after if request.free_nodes else 0,
    )


def may_move(state: State, pod: PodState) -> bool:
    """Return True if a drain could move the running pod, and the pod permits its eviction.

    A pod whose node is not ready stays, because it might then run twice. A pod whose node
    kube-scheduler chooses stays, because its next node is unknown. In Kubernetes, a pod with a
    notice stays, because the eviction API gives none."""
    about = pod.submitted
    return (
        about.evictable
        and not pod.terminating
        and comes_again(state, about)
        and not about.owner.startswith(DAEMON)
        and not about.chooser
        and not (about.notice_s and state.of_kubernetes)
        and not unready(state, pod)
    )


class _Wanting(NamedTuple):
    """A pending pod, or the pending pods of a gang; `alike` pods have the same requests."""

    kind: Literal["pod", "gang", "node"]
    name: str
    pods: list[PodState] = []
    alike: int = 1


class _Tried(NamedTuple):
    """A simulated step: the cluster after it, the moved pods, and the devices that it frees.

    `failed` has the uid of the unit at fault; it is empty if the step succeeded."""

    course: Course
    displaced: list[Displaced]
    freed: int = 0
    failed: str = ""


class _Defrag:
    """The steps found so far; `_course` is the cluster after them."""

    def __init__(
        self, course: Course, request: DefragRequest, tell: Tell, is_late: Callable[[], bool]
    ) -> None:
        self._course = course
        self._request = request
        self._tell = tell
        self._is_late = is_late
        self._now = micros_of(course.time) or 0
        self._tries = 0
        self._lost = 0.0
        self._moved: list[PodState] = []  # as they were
        self._again: set[str] = set()  # the uids of moved pods in the course
        self.steps: list[DefragStep] = []
        self.blocked: dict[str, DefragBlocked] = {}
        self.other_causes = 0

    def empty(self) -> int:
        """Return how many idle nodes can take pods, after the steps found so far."""
        cleared = {step.name for step in self.steps}  # cordoned until the last step
        return sum(
            _is_idle(node) and (node.name in cleared or _takes_pods(node))
            for node in self._course.state.nodes.values()
        )

    def make_fit(self) -> None:
        """Find steps for pending pods and gangs, the cheapest of all first."""
        # Units at fault, by beneficiary. After a step, they may fit elsewhere, or were moved.
        without: dict[str, frozenset[str]] = {}
        found: dict[str, tuple[_Wanting, Found]] = {}
        search: MoveSearch | None = None
        wanting: list[_Wanting] = []
        while True:
            if search is None:
                search = MoveSearch(self._course.state, self._may_move, now=self._now)
                found, wanting = {}, self._wanting()
            for each in wanting:
                if self._is_late():
                    self._block(each, "search-limit")
                    continue
                offer = self._find(search, each, without.get(each.name, frozenset()))
                if offer is not None:
                    found[each.name] = each, offer
            if not found:
                return
            name = min(found, key=lambda name: (found[name][1].lost, found[name][1].worth))
            each, offer = found.pop(name)
            wanting = []
            reason = self._beyond(offer)
            if reason:
                self._block(each, reason)
                continue
            tried = self._simulate(each, offer)
            if tried.failed:
                without[name] = without.get(name, frozenset()) | {tried.failed}
                wanting = [each]
            else:
                self._commit(each, offer, tried)
                search = None
                without.clear()

    def free_nodes(self) -> None:
        """Find steps that empty one node each, until enough nodes are empty.

        Those that move the fewest devices come first."""
        while self.empty() < self._request.free_nodes:
            for each, offer in self._targets():
                reason = self._beyond(offer)
                tried = _Tried(self._course, []) if reason else self._simulate(each, offer)
                if not (reason or tried.failed):
                    self._commit(each, offer, tried)
                    break
                self._block(each, reason or "no-place", [tried.failed] if tried.failed else [])
            else:
                return

    # ---- candidates ----

    def _wanting(self) -> list[_Wanting]:
        # The beneficiaries in the order of the queue; of pods with the same requests, the first.
        state, asked = self._course.state, frozenset(self._request.pods)
        pending = [pod for pod in state.pods.values() if pod.phase is PENDING]
        names = {
            self._name_of(pod) for pod in pending
            if not asked or asked & {pod.submitted.group, pod.full_name}
        }  # fmt: skip
        pending.sort(key=lambda pod: (place_of(state, pod), turn_of(pod)))
        fragmented = {
            self._name_of(pod) for pod in pending
            if not pod.submitted.chooser and cause_of(state, pod) in FRAGMENTED
        }  # fmt: skip
        kinds: dict[Hashable, _Wanting] = {}
        self.other_causes = 0
        for pod in pending:
            about, name = pod.submitted, self._name_of(pod)
            if name not in names:
                continue
            gang = name == about.group
            if name not in fragmented:
                self.other_causes += 1
                if asked:
                    self._block(_Wanting("gang" if gang else "pod", name), "other-cause")
                continue
            key = name if gang else (pod.shape_key, about.namespace, about.queue, about.priority)
            there = kinds.get(key)
            if there is None:
                kinds[key] = _Wanting("gang" if gang else "pod", name, [pod])
            elif gang:
                there.pods.append(pod)
            else:
                kinds[key] = there._replace(alike=there.alike + 1)
        for each in list(kinds.values())[KINDS_MAX:]:
            self._block(each, "search-limit")
        return [each for each in kinds.values() if each.name not in self.blocked]

    def _name_of(self, pod: PodState) -> str:
        group = self._course.state.groups.get(pod.submitted.group)
        together = group is not None and group.together
        return pod.submitted.group if together else pod.full_name

    def _targets(self) -> list[tuple[_Wanting, Found]]:
        # The nodes in use whose pods may all be moved.
        state, found = self._course.state, []
        for name, node in sorted(state.nodes.items()):
            each = _Wanting("node", name)
            if name in self.blocked or not _takes_pods(node) or _is_idle(node):
                continue
            units = {unit[0].uid: unit for unit in (unit_of(state, p) for p in node.pods.values())}
            stay = [
                pod for unit in units.values() for pod in unit
                if not self._may_move(pod) or len(unit) > UNIT_MAX
            ]  # fmt: skip
            pods = [pod for unit in units.values() for pod in unit]
            lost = lost_work(state, pods, self._now)
            offer = Found(
                tuple(sorted(units.values(), key=lambda unit: turn_of(unit[0]))), (name,), lost,
                worth(state, pods),
            )  # fmt: skip
            if stay or not pods:
                self._block(each, "pods-stay", [pod.uid for pod in stay])
            elif offer.worth >= DEVICE * sum(device.open for device in node.devices):
                self._block(each, "frees-less")
            else:
                found.append((each, offer))
        return sorted(found, key=lambda each: (each[1].worth, each[1].lost, each[0].name))

    def _may_move(self, pod: PodState) -> bool:
        return pod.uid not in self._again and may_move(self._course.state, pod)

    def _find(self, search: MoveSearch, each: _Wanting, without: frozenset[str]) -> Found | None:
        left = self._request.moves_max - len(self._moved)
        offer = search.find(each.pods, moves_max=left, without=without)
        if offer is not None:
            return offer
        # Counted generously: a device is as free as the amount of which most is free.
        dry_run, free = search.dry_run, sum(
            max(
                device.memory_free_mib / max(device.device.memory_mib, 1),
                device.cores_free / max(device.device.cores, 1),
                0.0,
            )
            for node in self._course.state.nodes.values() if node.ready and not node.cordoned
            for device in node.devices if device.open
        )  # fmt: skip
        gpus = dry_run.gain / DEVICE
        if gpus > free:
            self._block(each, "no-capacity", gpus=gpus, free_gpus=round(free, DIGITS))
        else:
            reason: NoMove = next(iter(dry_run.beyond), "no-place" if without else "pods-stay")
            self._block(each, reason, sorted(without), gpus=gpus, free_gpus=round(free, DIGITS))
        return None

    # ---- limits ----

    def _beyond(self, offer: Found) -> NoMove | None:
        # The limit that the step would exceed.
        pods = [*self._moved, *(pod for unit in offer.units for pod in unit)]
        most = self._request.lost_gpu_hours_max
        if most is not None and self._lost + offer.lost > most * HOUR_S:
            return "lost-max"
        if len(pods) > self._request.moves_max:
            return "moves-max"
        if exceeded(self._course.state, pods):
            return "disruption-budget"
        return "search-limit" if self._tries >= TRIES_MAX or self._is_late() else None

    def _block(
        self, each: _Wanting, reason: NoMove, uids: Iterable[str] = (), *, gpus: float = 0.0,
        free_gpus: float = 0.0,
    ) -> None:  # fmt: skip
        pods = [self._course.state.pods[uid].full_name for uid in dict.fromkeys(uids)]
        self.blocked[each.name] = DefragBlocked(
            kind=each.kind, name=each.name, reason=reason, alike=each.alike,
            pods=tuple(pods[:NAMED_MAX]), gpus=gpus, free_gpus=free_gpus,
        )  # fmt: skip

    # ---- simulation ----

    def _simulate(self, each: _Wanting, offer: Found) -> _Tried:
        # What `--apply` does, on a copy.
        self._tell(PlanProgress(step="simulating moves", done=self._tries, of=TRIES_MAX))
        self._tries += 1
        course = Course(copied(self._course.state), time=self._course.time)
        displaced: list[Displaced] = []
        first_of: dict[str, str] = {}
        for name in offer.nodes:
            course.apply(cordoning(name, "", by=WHO, reason=REASON))
        for unit in offer.units:
            moved = move(course, unit, f"{REASON}-{self._tries}-{len(displaced)}")
            first_of.update((pod.again.uid, unit[0].uid) for pod in moved)
            displaced += moved
            for _ in course.settle():
                pass
        state, before = course.state, self._course.state
        largest = max(offer.units, key=lambda unit: worth(before, unit))
        fault = _Tried(course, displaced, failed=largest[0].uid)
        if each.kind == "node":
            node = state.nodes[each.name]
            freed = DEVICE * sum(device.open for device in node.devices)
            more = sum(map(_is_idle, state.nodes.values()))
            more -= sum(map(_is_idle, before.nodes.values()))
            fits = _is_idle(node) and more > 0
        else:
            for name in offer.nodes:
                course.apply(lifting(name, "", of=WHO, by=WHO, reason=REASON))
            for _ in course.settle():
                pass
            live = [state.pods[pod.uid] for pod in each.pods if pod.uid in state.pods]
            freed = worth(state, live)
            group = before.groups.get(each.name) if each.kind == "gang" else None
            deficit = deficit_of(group) if group is not None else None
            placed = sum(pod.placement is not None for pod in live)
            fits = placed >= (deficit.pods if deficit is not None else 1)
        for pod in displaced:
            now = state.pods.get(pod.again.uid)
            if now is None or now.placement is None:
                return fault._replace(failed=first_of[pod.again.uid])
        if not fits or course.evicted or offer.worth >= freed:
            return fault
        return _Tried(course, displaced, freed)

    def _commit(self, each: _Wanting, offer: Found, tried: _Tried) -> None:
        before, after = self._course.state, tried.course.state
        again = {pod.again.uid for pod in tried.displaced}
        mine = {pod.uid for pod in each.pods}
        came = [
            pod for uid, pod in after.pods.items()
            if pod.placement is not None and uid not in again
            and (uid in mine or before.pods[uid].placement is None)
        ]  # fmt: skip
        came.sort(key=lambda pod: (pod.uid not in mine, turn_of(pod)))
        moves = []
        for moved in tried.displaced:
            about, placement = moved.before.submitted, after.pods[moved.again.uid].placement
            moves.append(DefragMove(
                uid=about.uid, namespace=about.namespace, pod=about.name, node=moved.node,
                to=placement.node if placement is not None else "",
                gpus=worth(before, [moved.before]) / DEVICE,
                lost_gpu_hours=round(
                    lost_work(before, [moved.before], self._now) / HOUR_S, DIGITS
                ),
                gang=about.group if len(unit_of(before, moved.before)) > 1 else "",
            ))  # fmt: skip
        self.steps.append(DefragStep(
            kind=each.kind, name=each.name, pods=tuple(pod.full_name for pod in came),
            nodes=offer.nodes, gpus_freed=tried.freed / DEVICE, gpus_moved=offer.worth / DEVICE,
            lost_gpu_hours=round(offer.lost / HOUR_S, DIGITS), moves=tuple(moves),
        ))  # fmt: skip
        self._lost += offer.lost
        self._moved += (pod.before for pod in tried.displaced)
        self._again |= again
        self._course = tried.course


def _takes_pods(node: NodeState) -> bool:
    return node.ready and not node.cordoned and any(device.open for device in node.devices)


def _is_idle(node: NodeState) -> bool:
    devices = [device for device in node.devices if device.present]
    return bool(devices) and all(device.idle for device in devices)
