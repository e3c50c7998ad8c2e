"""Replay a span of the ledger in virtual time with another policy, fleet or setup.

Recorded events of nodes and pods come at their recorded time, and the engine decides again. A pod
runs as long as in the recording, starting when it is placed. A pod that the replay evicts is
submitted again for its remaining time if it has a controller. The workload of a trace is replayed
in the same way (`lab.jobs`). Invariants: nothing is appended; a replay without changes gives the
recorded outcome, except for the time that decisions took."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, structs

from apportion.core.answers.replays import Measured, ReplayAnswer
from apportion.core.explain.text.words import many
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PLACED, State
from apportion.core.placement.pricing.program import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.core.reports.prices import Prices
from apportion.lab import changes as lab_changes
from apportion.lab.changes import Changes, lost_device, submitted_again
from apportion.lab.course import Course, CourseFailed
from apportion.lab.gates import Bound, judged
from apportion.lab.meter import Meter
from apportion.lab.planning import comes_again
from apportion.lab.recording import Fact, Recorded, Workload
from apportion.lab.setups import Effect, Setup
from apportion.lab.team_meter import NOTHING, TeamMeter, compared
from apportion.runtime.files.fleets import SimulatedNode
from apportion.runtime.process.clock import rfc3339_of
from apportion.runtime.solver import NoPrices, learn
from apportion_schemas import (
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PodAdopted,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    ResizeAsked,
)
from apportion_schemas.quantities import Payload

TOGETHER_S: Final = 0.01  # facts within this time are decided together, as a scheduler does
TELL_EVERY: Final = 1_000
# Facts of nodes, which do not apply to another fleet or to lost nodes.
OF_NODES: Final = (
    NodeReported, NodeObserved, DevicesRegistered, NodeGone, NodeCordoned, NodeUncordoned,
    NodeCordonLifted, NodeSilent, NodeHeard, DeviceHealthChanged, DeviceCordoned, DeviceUncordoned,
    DeviceCordonLifted,
)  # fmt: skip
LOST_REASON: Final = "lost"

Tell = Callable[[int, int], None]


class Otherwise(Struct, frozen=True, kw_only=True):
    """What a replay does differently from the recording. `changes` apply last.

    `fleet` replaces all nodes, and `more` are nodes in addition to them. A replay learns its own
    prices of shapes if its nodes, policy or configuration differ from the recorded ones. With
    `learns`, it always does: compare such a replay only with others that learn prices too."""

    changes: Changes = Changes()
    fleet: tuple[SimulatedNode, ...] = ()
    more: tuple[SimulatedNode, ...] = ()
    setup: Setup = Setup()
    learns: bool = False


class Placed(Struct, frozen=True):
    """A placement in a replay; `at_s` is in seconds since 1970."""

    pod: str
    namespace: str
    name: str
    node: str
    at_s: float
    devices: tuple[str, ...]


class Lost(NamedTuple):
    """The nodes and devices that a replay loses, including those that appear during the replay."""

    nodes: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()

    def there(self, state: State) -> tuple[str, ...]:
        """Return the lost nodes and devices that exist now, in order."""
        nodes = (name for name in self.nodes if (n := state.nodes.get(name)) and n.present)
        devices = (
            device
            for device in self.devices
            if (node := state.nodes.get(state.node_of_device.get(device, ""))) is not None
            and node.present
            and node.by_id[device].present
        )
        return (*sorted(nodes), *sorted(devices))

    def holds(self, data: PodAdopted) -> bool:
        """Return True if the adopted pod is on a lost node or device."""
        return data.node in self.nodes or any(s.device in self.devices for s in data.shares)

    def without(self, data: Payload) -> Payload:
        """Mark lost devices as failed in the event, if it reports devices, and return the event."""
        if not isinstance(data, NodeReported | DevicesRegistered) or self.devices.isdisjoint(
            device.id for device in data.devices
        ):
            return data
        devices = tuple(
            structs.replace(device, healthy=False, health_reason=LOST_REASON)
            if device.id in self.devices
            else device
            for device in data.devices
        )
        return structs.replace(data, devices=devices)


def lost(names: Iterable[str], state: State, facts: Iterable[Fact]) -> Lost:
    """Find the nodes and devices called `names`, in the state or in the recorded events.

    Raises WishInvalid if a name is unknown in this span or ambiguous."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return Lost()
    nodes = {name for name, node in state.nodes.items() if node.present}
    devices = set(state.node_of_device)
    for fact in facts:
        if isinstance(fact.data, NodeReported | DevicesRegistered):
            nodes.add(fact.data.node)
            devices.update(device.id for device in fact.data.devices)
        elif isinstance(node := getattr(fact.data, "node", None), str) and node:
            nodes.add(node)
    ids = [
        lost_device(name, nodes, devices, "in this time") for name in wanted if name not in nodes
    ]
    return Lost(frozenset(nodes.intersection(wanted)), frozenset(ids))


class Observer(Protocol):
    """Measures a replay. `advance` comes before all changes at that time, in seconds since 1970."""

    def advance(self, now_s: float) -> None:
        """Set the current time, in seconds since 1970."""

    def observe(self, change: Change) -> None:
        """Note a change of the state."""


class Replay:
    """Runs a replay of a workload. Its placements are collected in `placed` only if `kept`, and the
    figures of its queues and namespaces in `teams` only if `by_team`."""

    def __init__(
        self, recorded: Workload, otherwise: Otherwise, *, kept: bool = False,
        by_team: bool = False, prices: Prices | None = None, observers: Sequence[Observer] = (),
    ) -> None:  # fmt: skip
        self._recorded = recorded
        self._otherwise = otherwise
        self._kept = kept
        self._course = Course(recorded.beginning(), time=rfc3339_of(recorded.begin_s))
        self._course.until(recorded.begin_s)
        self._now_s = recorded.begin_s
        self._ends: list[tuple[float, str]] = []
        self._left_s: dict[str, float] = {}
        self._again: dict[str, str] = {}
        self._came_again = frozenset(recorded.after.values())
        self._first = {again: before for before, again in recorded.after.items()}
        self._began_s: dict[str, float] = {}
        self._end_s = dict(recorded.ends)
        self._evicted: list[PodSubmitted] = []
        self._added = frozenset[str]()
        self._lost = Lost()
        self._histogram: ShapeHistogram | None = None
        self._setup = Effect(otherwise.setup)
        for data in self._setup.facts(self._course.state):
            self._course.apply(data)
        self._gangs = {name: each.observed for name, each in self._course.state.groups.items()}
        self.passed_over = Counter[str]()  # recorded events that did not apply, by type
        self.placed: list[Placed] = []
        for uid, at_s in recorded.ends.items():
            heapq.heappush(self._ends, (at_s, uid))
        self._change()
        state, span = self._course.state, (recorded.begin_s, recorded.end_s)
        self._meter = Meter(state, *span, more=self._added)
        own: tuple[Observer, ...] = (self._meter,)
        self.teams: TeamMeter | None = None
        if by_team:
            self.teams = TeamMeter(state, *span, self._meter.requested, prices)
            own = (self._meter, self.teams)
        self._observers: tuple[Observer, ...] = (*own, *observers)
        self._course.watch(self._observe)

    @property
    def changes(self) -> tuple[str, ...]:
        """Return a text for each change."""
        return words(self._otherwise, self._course.state)

    def run(self, tell: Tell = lambda _, __: None) -> Measured:
        """Run the replay. `tell` is called with two counts: events replayed so far, and all events.

        Raises CourseFailed, WishInvalid or OSError."""
        recorded = self._recorded
        self._settle()
        since_s = recorded.begin_s
        for number, fact in enumerate(recorded.facts):
            if fact.at_s > since_s + TOGETHER_S:
                self._settle()
                since_s = fact.at_s
            self._until(fact.at_s)
            self._take(fact)
            if number % TELL_EVERY == 0:
                tell(number, recorded.facts.count)
        self._settle()
        self._until(recorded.end_s)
        return self._meter.measured()

    def run_out(self) -> None:
        """Go on after the end of the recording until no pod is left that will end."""
        while self._ends:
            self._until(self._ends[0][0])

    # -------------------------------------------------------------- time

    def _until(self, at_s: float) -> None:
        while True:
            ended_s = self._ends[0][0] if self._ends else math.inf
            due_s = self._course.due_s
            if self._now_s < due_s < min(ended_s, at_s):
                self._pass(due_s)
                self._settle()
                continue
            if ended_s > at_s:
                break
            uid = heapq.heappop(self._ends)[1]
            self._pass(ended_s)
            if uid in self._course.state.pods:
                self._course.apply(PodGone(uid=uid))
            if not self._ends or self._ends[0][0] > ended_s:
                self._settle()
        self._pass(at_s)

    def _pass(self, at_s: float) -> None:
        self._now_s = max(self._now_s, at_s)
        self._course.until(self._now_s)
        for each in self._observers:
            each.advance(self._now_s)

    def _settle(self) -> None:
        for _ in self._course.settle():
            evicted, self._evicted = self._evicted, []
            for pod in evicted:
                # Resubmit it for the time it had left: with its later uid if it was evicted in the
                # recording too, or else if it has a controller.
                recorded, uid = self._recorded, pod.uid
                name = recorded.after.get(uid, "")
                if not name and (uid in recorded.cut or not comes_again(self._course.state, pod)):
                    continue
                again = submitted_again(pod, name or f"evicted-{len(self._first)}")
                first = self._first_of(uid)
                self._first[again.uid], self._again[first] = first, again.uid
                if uid in self._end_s:
                    left_s = max(self._end_s[uid] - self._now_s, 0.0)
                    ran_s = self._now_s - self._began_s.get(uid, recorded.begin_s)
                    self._left_s[again.uid] = left_s + recorded.lost_s(ran_s)
                self._declare(again.group)
                self._course.apply(again)
                self._learn()

    def _first_of(self, uid: str) -> str:
        while uid in self._first:
            uid = self._first[uid]
        return uid

    def _now_as(self, uid: str) -> str:
        first = self._first_of(uid)
        return self._again.get(first, first)

    def _observe(self, change: Change) -> None:
        for each in self._observers:
            each.observe(change)
        if self._histogram is not None:
            self._histogram.observe(change)
        data = change.data
        if isinstance(data, PodEvicted) and change.pod is not None:
            self._evicted.append(change.pod.submitted)
        if not isinstance(data, PodPlaced):
            return
        left_s = self._left_s.get(data.pod)
        if left_s is None:
            left_s = self._recorded.ran_s.get(data.pod)
        if left_s is not None:
            self._began_s[data.pod] = self._now_s
            self._end_s[data.pod] = self._now_s + left_s
            heapq.heappush(self._ends, (self._end_s[data.pod], data.pod))
        if self._kept:
            devices = tuple(share.device for share in data.shares)
            self.placed.append(
                Placed(data.pod, data.namespace, data.name, data.node, self._now_s, devices)
            )

    # -------------------------------------------------------------- facts

    def _take(self, fact: Fact) -> None:
        data = self._setup.altered(fact.data)
        if data is None or self._is_other(data):
            return
        if isinstance(data, PodGone | PodChanged):
            data = structs.replace(data, uid=self._now_as(data.uid))
        elif isinstance(data, ResizeAsked):
            data = structs.replace(data, pod=self._now_as(data.pod))
        try:
            if isinstance(data, PodAdopted) and (self._otherwise.fleet or self._lost.holds(data)):
                self._course.apply(structs.replace(data.submitted, chooser=""))
            elif isinstance(data, PodSubmitted):
                self._declare(data.group)
                self._course.apply(structs.replace(data, chooser=""))
            else:
                uid = data.pod if isinstance(data, ResizeAsked) else ""
                pod = self._course.state.pods.get(uid)
                if pod is not None and pod.phase is PLACED and pod.placement is not None:
                    # Only a bound pod can be resized, and a replay has no binder.
                    at = pod.placement
                    self._course.apply(PodBound(pod=pod.uid, node=at.node, attempt=at.attempt))
                self._course.apply(self._lost.without(data))
        except CourseFailed:
            self.passed_over[type(data).__name__] += 1
            return
        if isinstance(data, PodGroupObserved):
            self._gangs[data.group] = data
        elif isinstance(data, PodGroupGone):
            self._gangs.pop(data.group, None)
        if isinstance(data, ConfigurationChanged) and self._otherwise.changes.policy:
            lab_changes.apply(self._course, Changes(policy=self._otherwise.changes.policy))
        if isinstance(data, PodSubmitted):
            self._learn()

    def _declare(self, name: str) -> None:
        declared, group = self._gangs.get(name), self._course.state.groups.get(name)
        if declared is not None and (group is None or group.observed is None):
            self._course.apply(declared)

    def _is_other(self, data: Payload) -> bool:
        """Return True if the replay skips a recorded event because it creates its own instead."""
        if isinstance(data, PodGone):
            if data.uid in self._recorded.ran_s or data.uid in self._recorded.cut:
                return True  # it ends after the same running time, or when evicted here
            return self._now_as(data.uid) not in self._course.state.pods
        if isinstance(data, PodSubmitted):
            return data.uid in self._came_again  # resubmitted here only if evicted here
        if isinstance(data, PolicyChanged):
            return bool(self._otherwise.changes.policy)
        if isinstance(data, PricesLearnt):
            return self._histogram is not None
        if isinstance(data, OF_NODES):
            if self._otherwise.fleet or getattr(data, "node", "") in self._lost.nodes:
                return True
            return isinstance(data, DeviceHealthChanged) and data.device in self._lost.devices
        return False

    def _learn(self) -> None:
        histogram = self._histogram
        if histogram is None or not histogram.due:
            return
        types = node_types(self._course.state)
        if any(each.devices for each in types):
            try:
                self._course.apply(learn(histogram.shapes(), types, pods=histogram.pods))
            except NoPrices:
                histogram.priced()

    # -------------------------------------------------------------- changes

    def _change(self) -> None:
        course, otherwise = self._course, self._otherwise
        if otherwise.fleet:
            self._replace_fleet(otherwise.fleet)
        before = set(course.state.nodes)
        for node in otherwise.more:
            for fact in lab_changes.added_node(course.state, node):
                course.apply(self._setup.of_topology(fact))
        facts = () if otherwise.fleet else self._recorded.facts
        self._lost = lost(otherwise.changes.lose, course.state, facts)
        there = self._lost.there(course.state)
        changes = structs.replace(otherwise.changes, lose=there)
        for each in lab_changes.apply(course, changes, self._setup.of_topology):
            # A pod that began before the span runs for the time it had left. If another pod
            # replaced it in the recording, it ends at that time here as well.
            uid, again = each.before.uid, each.again.uid
            first = self._first_of(uid)
            self._first[again], self._again[first] = first, again
            ran_s = self._recorded.ran_s.get(uid)
            if ran_s is not None:
                self._left_s[again] = ran_s
        self._added = frozenset(course.state.nodes.keys() - before)
        setup = otherwise.setup
        changed = otherwise.learns or otherwise.fleet or otherwise.more or otherwise.changes
        if changed or setup.configuration is not None:
            self._histogram = ShapeHistogram(course.state)

    def _replace_fleet(self, fleet: Sequence[SimulatedNode]) -> None:
        course, state = self._course, self._course.state
        self._ends.clear()
        pods = sorted(state.pods.values(), key=lambda pod: pod.submitted_revision)
        groups = [group.observed for group in state.groups.values() if group.observed is not None]
        now = course.time
        # A pending pod has waited since its submission, also for another fleet.
        since = {pod.uid: pod.submitted_time for pod in pods if pod.placement is None}
        for pod in pods:
            course.apply(PodGone(uid=pod.uid))
        for node in list(state.nodes.values()):
            if not node.gone:
                course.apply(NodeGone(node=node.name))
            if node.cordon:
                course.apply(NodeUncordoned(node=node.name, by=lab_changes.WHO))
        for device in list(state.device_cordons):
            course.apply(DeviceUncordoned(device=device, by=lab_changes.WHO))
        for new in fleet:
            for fact in lab_changes.node_facts(new):
                course.apply(self._setup.of_topology(fact))
        for group in groups:
            course.apply(group)
        for pod in pods:
            course.time = since.get(pod.uid, now)
            course.apply(structs.replace(pod.submitted, chooser=""))
        course.time = now


def replay(
    recorded: Recorded, otherwise: Otherwise, *, bounds: Sequence[Bound] = (),
    prices: Prices | None = None, tell: Tell = lambda _, __: None,
) -> ReplayAnswer:  # fmt: skip
    """Replay the recording with changes, compare both outcomes, and check the gates (`bounds`).

    Teams have costs only if the recording was made with the same `prices`.
    Raises CourseFailed, WishInvalid, GateInvalid or PriceError."""
    of_setup = dict.fromkeys(otherwise.setup.teams, NOTHING)
    judged(bounds, compared(recorded.teams, of_setup))  # before a long replay
    replayed = Replay(recorded, otherwise, by_team=True, prices=prices)
    happened, found, other = recorded.happened, replayed.run(tell), replayed.passed_over
    saved = happened.gpu_hours_waited - found.gpu_hours_waited
    teams = compared(recorded.teams, replayed.teams.figures() if replayed.teams else {})
    return ReplayAnswer(
        span=recorded.span,
        changes=replayed.changes,
        happened=happened,
        replayed=found,
        gpus_saved=happened.devices_peak - found.devices_peak,
        gpu_hours_waited_saved=round(saved, 6),
        passed_over=other.total(),
        passed_over_types=dict(sorted(other.items())),
        teams=teams,
        gates=judged(bounds, teams),
        currency=prices.currency if prices is not None else "",
    )


def words(otherwise: Otherwise, state: State) -> tuple[str, ...]:
    """Return a text that describes each change, such as `by the policy spread`."""
    fleet = otherwise.fleet
    devices = sum(len(node.devices) for node in fleet)
    said = [f"on a fleet of {len(fleet):,} nodes with {devices:,} devices"] if fleet else []
    said += [f"with {many(len(otherwise.more), 'node')} more"] if otherwise.more else []
    return (
        *said,
        *otherwise.setup.words,
        *(each.words for each in lab_changes.changes_of(otherwise.changes, state)),
    )
