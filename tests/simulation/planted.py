"""Deliberately broken variants of the real code, each of which the simulation must notice.

Each variant breaks one code path within a `with` block. It states how many seeds the simulation may
need to notice the fault."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import structs

from apportion.agent.reporting.agent import Agent
from apportion.agent.reporting.view import Claim, FleetView, NodeView
from apportion.binder.binding import Binding
from apportion.core.devices.shares import DeviceState, release
from apportion.core.intake import judging
from apportion.core.intake.judging import Refusal
from apportion.core.ledger import snapshot
from apportion.core.ledger.fold import HANDLERS
from apportion.core.ledger.handlers import gangs as folded_gangs
from apportion.core.ledger.state import NodeState, Phase, State
from apportion.core.placement import engine, gang_turn, gangs
from apportion.core.placement.engine import Decision, Engine
from apportion.core.placement.feasibility.descriptors import REFUSED
from apportion.core.placement.gang_models import NO_KINDS, GangModels
from apportion.core.placement.gangs import GangDeficit
from apportion.core.placement.index import columns
from apportion.core.placement.index.columns import Columns, RowOrder
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing import hints
from apportion.core.placement.queueing.sharding import Shard
from apportion.core.placement.queueing.waiting import Waiting
from apportion.core.placement.reservations import Reservations
from apportion.intake import reads, taking
from apportion.intake.taking import Lane
from apportion.runtime.jetstream.object_store import BadObject
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.membership import Membership
from apportion.runtime.ledger.port import Delivery, Draft, FenceRefused, LedgerError, WorkQueue
from apportion.runtime.ledger.publisher import Insistence
from apportion.runtime.ledger.reader import Reader
from apportion.scheduler import cycle
from apportion.watcher.local.reconcile import Fact
from apportion.watcher.local.watching import Watching
from apportion_schemas import (
    BindFailed,
    Event,
    PlacementVoided,
    PodBound,
    PodGone,
    PodPlaced,
    Share,
)
from tests.simulation.weather import Weather

Patch = pytest.MonkeyPatch


class Planted(NamedTuple):
    """A broken variant of the code, and the seeds with which the simulation must notice it."""

    name: str
    plant: Callable[[Patch], None]
    seeds: int  # How many seeds are tried, counting up from `first`.
    rates: Mapping[str, float] = {}  # Faults that are on in all runs: some variants need a race.
    cluster: bool = False  # Whether the runs have a cluster.
    first: int = 0

    def adjust(self, weather: Weather) -> None:
        """Turn on the faults that make this variant noticeable."""
        weather.rates.update(self.rates)


def _no_node_fence(patch: Patch) -> None:
    """Make a scheduler append placements without checking that the node has not changed since."""
    real = cycle.fence

    def fence(*arguments: Any) -> list[Draft]:
        return [structs.replace(draft, expect=None) for draft in real(*arguments)]

    patch.setattr(cycle, "fence", fence)


def _no_pod_fence(patch: Patch) -> None:
    """Let a scheduler place a pod again under a new id, which the server does not refuse."""
    numbers = itertools.count()
    real = cycle._id
    patch.setattr(cycle, "_id", lambda event, state: f"{real(event, state)}/{next(numbers)}")


def _no_limit_fence(patch: Patch) -> None:
    """Let two schedulers use up the same limit, each without knowing of the other's placements.

    Normally, one scheduler decides for all pods with a common limit. This patch spreads them over
    several schedulers, as happens while schedulers start."""
    real = cycle.fence

    def fence(*arguments: Any) -> list[Draft]:
        return [
            structs.replace(draft, expect=None) if ".limits." in draft.subject else draft
            for draft in real(*arguments)
        ]

    patch.setattr(cycle, "fence", fence)
    patch.setattr(Limits, "owner_key", lambda _limits, _pod: "")


def _ack_before_effect(patch: Patch) -> None:
    """Make a binder acknowledge a placement before it records the binding."""

    async def record(self: Binding, placed: PodPlaced, delivery: Delivery) -> None:
        await delivery.ack()
        data = PodBound(pod=placed.pod, node=placed.node, attempt=placed.attempt)
        await self._publish(data, f"{placed.pod}/{placed.attempt}/bound", delivery)

    patch.setattr(Binding, "_record_bound", record)


def _cursor_before_publish(patch: Patch) -> None:
    """Make a binder acknowledge placements as soon as it has fetched them."""
    real = Binding._fetch

    async def fetch(self: Binding, queue: WorkQueue, reader: Reader[Any]) -> list[Delivery]:
        deliveries = await real(self, queue, reader)
        for delivery in deliveries:
            try:
                await delivery.ack()
            except LedgerError:
                continue
        return deliveries

    patch.setattr(Binding, "_fetch", fetch)


def _failed_bind_forgotten(patch: Patch) -> None:
    """Make a binder acknowledge a binding that failed temporarily, instead of retrying it."""

    async def record(self: Binding, placed: PodPlaced, failed: Any, delivery: Delivery) -> None:
        data = BindFailed(
            pod=placed.pod,
            node=placed.node,
            attempt=placed.attempt,
            message=failed.message,
            final=failed.final,
        )
        await self._publish(data, f"{placed.pod}/{placed.attempt}/bind-failed/1", delivery)
        await delivery.ack()

    patch.setattr(Binding, "_record_failed", record)


def _binds_what_is_gone(patch: Patch) -> None:
    """Make a binder skip the check that the placement still exists."""

    def is_live(self: Binding, placed: PodPlaced, revision: int) -> bool:
        del self, placed, revision
        return True

    patch.setattr(Binding, "_is_live", is_live)


def _decides_before_folding(patch: Patch) -> None:
    """Make a scheduler decide again before its state includes its last decision."""

    async def reached(self: Reader[Any], revision: int) -> None:
        del self, revision
        await asyncio.sleep(0)

    patch.setattr(Reader, "reached", reached)


def _override(patch: Patch, module: ModuleType, of: type, **methods: Any) -> None:
    """In this module, replace a class by a subclass with these methods.

    Methods of a compiled class cannot be replaced themselves."""
    patch.setattr(module, of.__name__, type(of.__name__, (of,), methods))


def _lost_undo(patch: Patch) -> None:
    """Make the engine keep the reservations of a plan that it has rolled back."""

    def roll_back(self: Reservations, checkpoint: int = 0) -> None:
        self._newest = None
        del self.charged[checkpoint:]

    _override(patch, engine, Reservations, roll_back=roll_back)


def _refused_pods_lost(patch: Patch) -> None:
    """Make the engine drop the pods of a decision that the ledger refused."""

    def retry(self: Engine, decision: Decision) -> None:
        del self, decision

    _override(patch, cycle, Engine, retry=retry)


def _unschedulable_for_what_never_came(patch: Patch) -> None:
    """If the ledger refuses a decision, keep the engine from offering its room to other pods.

    The hints of refused placements are removed too, because they would cause the retry."""
    whom = enumerate(hints.BY_EVENT[PodPlaced])
    taken = tuple(0 if happened & REFUSED else asks for happened, asks in whom)
    patch.setitem(hints.BY_EVENT, PodPlaced, taken)
    real = Engine.retry

    def retry(self: Engine, decision: Decision) -> None:
        before = self._waking._hints, self._waking._reordered
        real(self, decision)
        self._waking._hints, self._waking._reordered = before

    _override(patch, cycle, Engine, retry=retry)


def _double_release(patch: Patch) -> None:
    """Release the shares of a pod twice when the pod ends."""
    real = HANDLERS[PodGone]

    def gone(context: Any, data: PodGone) -> Any:
        pod = context.state.pods.get(data.uid)
        placed = pod.placement if pod is not None else None
        change = real(context, data)
        if placed is not None:
            for share in placed.shares:
                release(context.state.nodes[placed.node].by_id[share.device], share)
        return change

    patch.setitem(HANDLERS, PodGone, gone)


def _attempt_not_raised(patch: Patch) -> None:
    """Make the attempt after a withdrawn placement have the same number as before."""
    real = HANDLERS[PlacementVoided]

    def voided(context: Any, data: PlacementVoided) -> Any:
        change = real(context, data)
        assert change.pod is not None
        change.pod.attempt -= 1
        return change

    patch.setitem(HANDLERS, PlacementVoided, voided)


def _unsorted_tie(patch: Patch) -> None:
    """Let the engine choose any node of equal score, instead of the first one by name."""

    def rank(self: RowOrder, name: str) -> int:
        del name
        return len(self.row_of) * (next(_touched) % 2)

    _override(patch, columns, RowOrder, _rank=rank)


_touched = itertools.count()


def _fold_by_reader(patch: Patch) -> None:
    """Make the fold depend on something outside the ledger: how often it has run."""
    real = HANDLERS[PodGone]
    count = itertools.count()

    def gone(context: Any, data: PodGone) -> Any:
        context.state.released_count += next(count) % 2
        return real(context, data)

    patch.setitem(HANDLERS, PodGone, gone)


def _offer(patch: Patch, **as_if: Any) -> None:
    """Make the engine compute free resources as if every device had the attributes in `as_if`."""

    def refresh(self: Columns, row: int, node: NodeState, shares: list[Share] | None) -> None:
        true = [{name: getattr(state, name) for name in as_if} for state in node.devices]
        for state in node.devices:
            _become(state, as_if)
        Columns._refresh(self, row, node, shares)
        for state, was in zip(node.devices, true, strict=True):
            _become(state, was)

    _override(patch, engine, Columns, _refresh=refresh)


def _become(state: DeviceState, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(state, name, value)


def _sick_devices_offered(patch: Patch) -> None:
    """Make the engine offer unhealthy devices."""
    _offer(patch, healthy=True)


def _cordons_ignored(patch: Patch) -> None:
    """Make the engine offer cordoned devices."""
    _offer(patch, cordon="")


def _gangs_in_part(patch: Patch) -> None:
    """Make a gang start with only the pods that fit."""
    real = gangs.deficit_of

    def deficit_of(group: Any) -> GangDeficit | None:
        deficit = real(group)
        return deficit and GangDeficit(type(deficit.tasks)(), 1)

    patch.setattr(gang_turn, "deficit_of", deficit_of)


def _held_in_part(patch: Patch) -> None:
    """Make the fold release a large gang's pods for binding after the gang's first batch."""

    def hold(state: Any, pod: Any, *, more_follow: bool) -> None:
        del state, pod, more_follow

    patch.setattr(folded_gangs, "hold", hold)


def _models_mixed(patch: Patch) -> None:
    """Make the engine place the pods of a gang on any models."""
    patch.setattr(GangModels, "excluded", lambda _self, _pod: NO_KINDS)


def _unschedulable_for_ever(patch: Patch) -> None:
    """Make the engine retry no pending pod when another pod ends."""
    patch.delitem(hints.BY_EVENT, PodGone)


def _allocates_when_placed(patch: Patch) -> None:
    """Make an agent allocate shares as soon as a pod is placed, before it is bound."""
    real = FleetView.apply

    def apply(self: FleetView, record: Any, event: Any) -> str:
        said = real(self, record, event)
        data = event.data
        if isinstance(data, PodPlaced) and data.node in self.nodes:
            self.due[data.pod, data.attempt] = Claim(data, record.revision)
            self.became_due.set()
        return said

    patch.setattr(FleetView, "apply", apply)


def _wrong_devices(patch: Patch) -> None:
    """Make an agent allocate the first devices of its node, whatever the scheduler chose."""
    real = FleetView._bound

    def bound(self: FleetView, node: NodeView, *rest: Any) -> None:
        real(self, node, *rest)
        if node.said is not None and node.said.devices:
            for key, claim in self.due.items():
                first = node.said.devices[0].id
                if claim.node == node.said.node:
                    wrong = [structs.replace(each, device=first) for each in claim.placed.shares]
                    placed = structs.replace(claim.placed, shares=tuple(wrong))
                    self.due[key] = Claim(placed, claim.bound_revision)

    patch.setattr(FleetView, "_bound", bound)


def _answers_once(patch: Patch) -> None:
    """Make an agent send each allocation event only once, even if no intake acknowledges it."""

    async def answer(self: Agent, *what: Any) -> None:
        try:
            await asyncio.wait_for(real(self, *what), 0.05)
        except TimeoutError:
            return

    real = Agent._answer
    patch.setattr(Agent, "_answer", answer)


def _gives_up(patch: Patch) -> None:
    """Make a service give up an append if the first try fails."""

    async def append(self: Insistence, draft: Draft) -> Appended:
        try:
            return await self._append(draft)
        except LedgerError:
            return Appended(None)

    patch.setattr(Insistence, "append", append)


def _compares_too_early(patch: Patch) -> None:
    """Give each append a new id, so that two watchers append everything twice."""
    numbers = itertools.count()
    real = Watching._append

    async def append(self: Watching, facts: Sequence[Fact]) -> None:
        fresh = [fact._replace(event_id=f"{fact.event_id}/{next(numbers)}") for fact in facts]
        await real(self, fresh)

    patch.setattr(Watching, "_append", append)


def _starts_at_the_end(patch: Patch) -> None:
    """Make a restarted reader skip all records that are already stored."""
    real = Reader.run

    async def run(self: Reader[Any]) -> None:
        if isinstance(self._fold, FleetView):
            ledger: Any = self._ledger
            last = await ledger.last_revision()
            follow = ledger.follow

            def later(deliver: Any, **options: Any) -> Any:
                return follow(deliver, **{**options, "start": last + 1})

            self._ledger = _Following(ledger, later)
        await real(self)

    patch.setattr(Reader, "run", run)


class _Following:
    def __init__(self, ledger: Any, follow: Any) -> None:
        self._ledger = ledger
        self.follow = follow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


def _void_of_the_living(patch: Patch) -> None:
    """Make a scheduler withdraw placements of running pods without a reason."""
    real = Engine._voids

    def voids(self: Engine, events_max: int) -> list[Any]:
        found = real(self, events_max)
        for pod in self._state.pods.values():
            if pod.phase is Phase.ALLOCATED and pod.placement is not None and not found:
                at = pod.placement
                found.append(
                    PlacementVoided(pod=pod.uid, attempt=at.attempt, node=at.node, reason="whim")
                )
        return found

    _override(patch, cycle, Engine, _voids=voids)


def _snapshot_off_by_one(patch: Patch) -> None:
    """Make a service restore a snapshot with a revision that is one too high."""
    real = Snapshots.restore

    async def restore(self: Snapshots, *, at_most: int | None = None) -> State:
        state = await real(self, at_most=at_most)
        state.revision += at_most is None and state.revision > 0
        return state

    patch.setattr(Snapshots, "restore", restore)


def _snapshot_believed(patch: Patch) -> None:
    """Let readers start with an empty state if a snapshot is damaged, without an error."""

    async def load(self: Snapshots, stored: Any) -> State | None:
        try:
            return snapshot.restore(await self._bucket.get(stored.entry, size_max=1 << 30))
        except (BadObject, snapshot.SnapshotError):
            return State(revision=stored.revision)

    patch.setattr(Snapshots, "load", load)


def _forged_snapshot_attested(patch: Patch) -> None:
    """Make an intake attest every snapshot that it can read, even a false one."""
    patch.setattr(reads, "_same", lambda *_: True)


def _dead_members_stay(patch: Patch) -> None:
    """Make schedulers never notice that another scheduler is silent.

    So no scheduler takes over the pods of the silent one."""
    patch.setattr(Membership, "_count_silence", lambda _self: None)


def _gained_not_woken(patch: Patch) -> None:
    """Make a scheduler ignore the pods that it takes over from another scheduler."""

    def own(self: Waiting, shard: Shard) -> None:
        self.shard = shard

    _override(patch, engine, Waiting, own=own)


UNHEARD = {"unheard member": 1.0}


def _fences_upon_what_was_dropped(patch: Patch) -> None:
    """If the server refuses a fence because its record was dropped, make a scheduler repeat it."""

    async def refused(self: Fences, refusal: FenceRefused, ledger: object) -> None:
        del self, refusal, ledger

    patch.setattr(Fences, "refused", refused)


def _agents_begin_with_nothing(patch: Patch) -> None:
    """Make an agent ignore the snapshot from which it must start on a trimmed ledger."""

    def begin(self: FleetView, state: State) -> None:
        del self, state

    patch.setattr(FleetView, "begin", begin)


def _intake_takes_any_node(patch: Patch) -> None:
    """Make an intake accept an agent's event about any node."""
    real = taking.read

    def read(node: str, payload: bytes, now: datetime) -> Event | Refusal:
        with suppress(ValueError, RecursionError, LookupError, TypeError):
            node = str(msgspec.json.decode(payload)["data"]["node"])
        return real(node, payload, now)

    patch.setattr(taking, "read", read)


def _intake_takes_any_card(patch: Patch) -> None:
    """Make an intake accept a device of any size."""
    patch.setattr(judging, "implausible", lambda *_: "")


def _intake_takes_any_id(patch: Patch) -> None:
    """Make an intake append an event under the id that the agent chose."""
    patch.setattr(taking, "append_id", lambda _node, event_id: event_id)


def _intake_takes_any_answer(patch: Patch) -> None:
    """Make an intake accept any agent's answer about any pod and device."""
    patch.setattr(taking, "judge", lambda *_: None)


def _floods_taken(patch: Patch) -> None:
    """Make an intake append all changes of a node, however many the agent sends."""
    patch.setattr(Lane, "may_change", lambda _self, _now_s: True)


FLOODS = {"agent flood": 0.5}
FORGED = {"forged snapshot": 1.0, "crash": 0.5}
HOSTILE = {"hostile agent": 2.0}
CROSSED = {"rogue event": 1.0, "unheard member": 0.6, "delayed delivery": 0.1}
TRIMS = {"ledger trimmed": 1.0, "crash": 0.5}
LIMITS = {"unheard member": 0.6, "limits changed": 0.3, "delayed delivery": 0.1}
RACES = {"rogue event": 1.0, "policy change": 1.0, "cordon": 1.0, "delayed delivery": 0.1}

PLANTED = (
    Planted("no node fence", _no_node_fence, 30, RACES, first=5),
    Planted("no pod fence", _no_pod_fence, 30, UNHEARD, first=1),
    Planted("no fence of limits", _no_limit_fence, 20, LIMITS, first=75),
    Planted("ack before effect", _ack_before_effect, 80, first=5),
    Planted("cursor moved before publish", _cursor_before_publish, 20),
    Planted("failed bind forgotten", _failed_bind_forgotten, 10),
    Planted("binds what is gone", _binds_what_is_gone, 20, first=1),
    Planted("decides before folding", _decides_before_folding, 10),
    Planted("lost undo", _lost_undo, 3),
    Planted("refused pods lost", _refused_pods_lost, 20),
    Planted(
        "unschedulable for what never came",
        _unschedulable_for_what_never_came,
        40,
        CROSSED,
        first=475,
    ),
    Planted("double release", _double_release, 5),
    Planted("attempt not raised after void", _attempt_not_raised, 20, first=2),
    Planted("unsorted tie", _unsorted_tie, 30, first=26),
    Planted("fold by reader", _fold_by_reader, 5),
    Planted("sick devices offered", _sick_devices_offered, 20),
    Planted("cordons ignored", _cordons_ignored, 20, first=7),
    Planted("gangs in part", _gangs_in_part, 10),
    Planted("held gangs bound in part", _held_in_part, 20, first=19),
    Planted("gangs of several models", _models_mixed, 20, first=6),
    Planted("unschedulable for ever", _unschedulable_for_ever, 30, first=9),
    Planted("allocates when placed", _allocates_when_placed, 3),
    Planted("wrong devices", _wrong_devices, 3),
    Planted("answers once", _answers_once, 20, first=14),
    Planted("gives up", _gives_up, 10, first=2),
    Planted("new id each time", _compares_too_early, 10),
    Planted("starts at the end", _starts_at_the_end, 10, first=1),
    Planted("snapshot off by one", _snapshot_off_by_one, 10),
    Planted("torn snapshot believed", _snapshot_believed, 20, first=6),
    Planted("forged snapshot attested", _forged_snapshot_attested, 20, FORGED),
    Planted("voids the living", _void_of_the_living, 3),
    Planted("fences upon what was dropped", _fences_upon_what_was_dropped, 5, TRIMS),
    Planted("agents begin with nothing", _agents_begin_with_nothing, 20, TRIMS),
    Planted("dead members stay", _dead_members_stay, 30, {"crash": 0.5}, first=18),
    Planted("gained pods not woken", _gained_not_woken, 20, first=1),
    Planted("intake takes any node", _intake_takes_any_node, 5, HOSTILE),
    Planted("intake takes any card", _intake_takes_any_card, 5, HOSTILE),
    Planted("intake takes any id", _intake_takes_any_id, 5, HOSTILE),
    Planted("intake takes any answer", _intake_takes_any_answer, 5, HOSTILE),
    Planted("floods taken", _floods_taken, 5, FLOODS),
)


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """Replace the real code by this variant until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        yield
