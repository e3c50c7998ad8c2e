"""Reservations of nodes under faults, with several schedulers.

The configuration asks for reservations until the faults end, so that the final checks apply to a
cluster without any. Checked with every placement on a reserved node by a scheduler that knew the
reservation: the gang still fits at the promised start, if all pods end at their deadlines."""

from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.handlers.departures import RESERVATION
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import PodState, State
from apportion.core.placement import kept_nodes
from apportion.core.placement.engine import Engine
from apportion.core.placement.kept_nodes import KeptNodes
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    Event,
    NodeCordoned,
    NodesReserved,
    PodGone,
    PodPlaced,
    decode,
)
from apportion_schemas.configuration import QueuesConfiguration
from apportion_schemas.quantities import Payload
from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos
from tests.simulation.wishes import Wishes
from tests.simulation.world import World, run
from tests.support.deciding import decided
from tests.support.memory_server import Stored

SEEDS = range(900, 920)
AFTER_S = 3
DEADLINES_S = (0, 70, 100, 300, 900)
RESERVING = Configuration(queues=QueuesConfiguration(reserve_after="1m"))


def can_start(state: State, reserved: NodesReserved) -> bool:
    """Return True if the pods fit on their reserved nodes once others have met their deadlines."""
    copy = restore(take(state))

    def apply(data: Payload) -> None:
        event = Event(id="e", source="test", time=reserved.starts, data=data)
        fold.apply(copy, copy.revision + 1, event)

    kept, starts = {each.pod for each in reserved.kept}, micros_of(reserved.starts) or 0
    for pod in list(copy.pods.values()):
        if pod.uid not in kept and ends_by(pod, starts):
            apply(PodGone(uid=pod.uid))
    nodes = {each.node for each in reserved.kept}
    for name in set(copy.nodes) - nodes:
        apply(NodeCordoned(node=name, by="test", reason="not reserved"))
    found = decided(Engine(copy)).events
    return kept <= {each.pod for each in found if isinstance(each, PodPlaced)}


def ends_by(pod: PodState, starts: int) -> bool:
    """Return True if the pod is pending, or ends by this time."""
    if pod.placement is None:
        return True
    placed, deadline_s = micros_of(pod.placed_time) or 0, pod.submitted.deadline_s
    return bool(deadline_s) and placed + deadline_s * SECOND <= starts


class Promises:
    """Checks the reservations of a simulation, and counts what it checked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen = Counter[str]()
        self.wrong: list[str] = []
        real = Auditor.take

        def take_and_check(auditor: Auditor, stored: Stored) -> None:
            decides = stored.writer.startswith("scheduler/")
            records = stored.records if decides else ()
            events = [decode(each.payload, subject=each.subject) for each in records]
            before = self.to_check(auditor.state, events)
            last = auditor.state.limits_checked.get(RESERVATION, 0)
            real(auditor, stored)
            for event in events:
                if isinstance(event.data, NodesReserved):
                    self.seen["reserved" if event.data.kept else "ended"] += 1
                    if event.basis < last:
                        self.wrong.append(f"{event.data} does not know revision {last}")
            if before is not None and not can_start(auditor.state, before):
                self.wrong.append(f"{before} is delayed by {events}")

        patch.setattr(Auditor, "take", take_and_check)

    def to_check(self, state: State, events: list[Event]) -> NodesReserved | None:
        """Return the reservation that these placements could delay, if they know it."""
        reserved = state.reserved
        if reserved is None or not reserved.starts:
            return None
        kept = {each.pod: each.node for each in reserved.kept}
        priority = state.pods[reserved.pod].submitted.priority
        for event in events:
            data: Any = event.data
            if not isinstance(data, PodPlaced) or data.node not in kept.values():
                continue
            pod = state.pods.get(data.pod)
            if pod is None or event.basis < state.limits_checked[RESERVATION]:
                continue
            ours = data.pod in kept or pod.submitted.group == reserved.name
            if not ours and pod.submitted.priority <= priority and can_start(state, reserved):
                self.seen["filled in"] += 1
                return reserved
        return None


def reserving(patch: pytest.MonkeyPatch) -> Promises:
    """Give pods deadlines, and ask for reservations until the faults end."""
    draft, reign, mend, draw = Wishes._draft, Chaos.reign, Chaos.mend, World._draw

    def with_deadline(wishes: Wishes, *arguments: Any, **fields: Any) -> PodDraft:
        made = draft(wishes, *arguments, **fields)
        return structs.replace(made, deadline_s=DEADLINES_S[wishes._number % len(DEADLINES_S)])

    async def begin(chaos: Chaos) -> None:
        chaos.say(ConfigurationChanged(by="sim", configuration=RESERVING))
        await reign(chaos)

    async def end(chaos: Chaos) -> None:
        await mend(chaos)
        chaos.say(ConfigurationChanged(by="sim", configuration=Configuration()))

    def two(world: World) -> Any:
        (_, *others), racks = draw(world)
        return (2, *others), racks

    def after_s(queues: QueuesConfiguration) -> int:
        return AFTER_S if queues.reserve_after else 0

    patch.setattr(Wishes, "_draft", with_deadline)
    patch.setattr(Chaos, "reign", begin)
    patch.setattr(Chaos, "mend", end)
    patch.setattr(World, "_draw", two)
    patch.setattr(kept_nodes, "reserve_after_s", after_s)
    return Promises(patch)


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
def test_promises_hold_under_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schedulers never replace each other's reservation, and delay no promised start."""
    promises = reserving(monkeypatch)
    for seed in SEEDS:
        outcome = run(seed, cluster=False)
        assert not outcome.trouble, outcome.told()
        assert not promises.wrong, (seed, promises.wrong)
    assert {"reserved", "ended", "filled in"} <= promises.seen.keys(), promises.seen


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
def test_a_broken_promise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If other pods may use reserved nodes whatever their deadline, some start is delayed."""
    promises = reserving(monkeypatch)
    monkeypatch.setattr(KeptNodes, "in_time", lambda _kept, _pod: True)
    for seed in SEEDS:
        run(seed, cluster=False)
        if promises.wrong:
            return
    raise AssertionError(promises.seen)
