"""Functions that play histories of `core_histories` and check every decision.

The property tests of the engine, queues and quotas share this module. Invariant: a history consists
of events and decisions only, so whatever fails here can happen to a real scheduler."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.placement.engine import Decision, DecisionEvent, Engine
from apportion_schemas import PodEvicted, PodRefused
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Decide, Effect, Step
from tests.support.deciding import decided
from tests.support.ledger_of import Ledger

ROUNDS_MAX = 60


def certain(decision: Decision) -> list[DecisionEvent]:
    """Return the placements and voids of a decision, without refusals and evictions.

    An older engine may already have reported a refusal, and evicts pods only when there is no
    refusal to report."""
    untold = (PodRefused, PodEvicted)
    return [event for event in decision.events if not isinstance(event, untold)]


def evictions(decision: Decision) -> list[DecisionEvent]:
    """Return the evictions of a decision, with their beneficiaries."""
    return [event for event in decision.events if isinstance(event, PodEvicted)]


def unheard(decision: Decision, ledger: Ledger) -> set[str]:
    """Return the pods that a decision refuses for the first time."""
    refused = {event.pod for event in decision.events if isinstance(event, PodRefused)}
    return {uid for uid in refused if ledger.pod(uid).refusal is None}


def tried_again(fresh: Decision, decision: Decision) -> bool:
    """Return True if a new engine found room for a pending gang: see the engine's invariant."""
    return bool(gangs_placed(fresh) - gangs_placed(decision))


def gangs_placed(decision: Decision) -> set[str]:
    """Return the gangs of which the decision places a pod."""
    return {pod.submitted.group for pod in decision.placed} - {""}


def decision_of(ledger: Ledger, step: Decide) -> Decision:
    """Return one decision of the ledger's engine, checked to be complete and repeatable, without
    folding it."""
    before = ledger.digest()
    fresh = decided(Engine(ledger.state), events_max=step.events_max)
    assert ledger.digest() == before, "a decision must leave the state as it was"
    decision = decided(ledger.engine, events_max=step.events_max)
    assert ledger.digest() == before, "a decision must leave the state as it was"
    if tried_again(fresh, decision):
        return decision
    assert certain(decision) == certain(fresh), "an engine's past must not count"
    if evictions(decision) and evictions(fresh):
        assert evictions(decision) == evictions(fresh), "an engine's past must not count"
    if step.events_max > len(ledger.state.pods):
        assert unheard(decision, ledger) == unheard(fresh, ledger)
    about = [event.pod for event in decision.events]
    assert len(set(about)) == len(about), "one event for each pod"
    return decision


def told(ledger: Ledger, step: Payload | Effect) -> Payload | None:
    """Return the event of a step that is not a decision, or None if no pod is in the required
    phase."""
    return step.about(ledger.state) if isinstance(step, Effect) else step


def follow(
    ledger: Ledger,
    steps: list[Step],
    watched: Callable[[State], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Play the history, and check the invariants after every event.

    The context `watched` surrounds the events of each decision, and may check their effects."""
    for step in steps:
        if not isinstance(step, Decide):
            data = told(ledger, step)
            if data is not None:
                ledger.take(data)
            continue
        decision = ledger.consider() if step.rival else decision_of(ledger, step)
        if step.lost and not step.rival:
            ledger.engine.retry(decision)
            continue
        with watched(ledger.state):
            ledger.play(*decision.events)


def fall_silent(ledger: Ledger) -> None:
    """Decide until a decision has no events; fail if that never happens."""
    for _ in range(ROUNDS_MAX):
        if not ledger.decide():
            return
    raise AssertionError("the engine never falls silent")


def changes(ledger: Ledger, steps: list[Step]) -> Iterator[Change]:
    """Yield the state changes of the history; a new engine makes each decision."""
    for step in steps:
        if isinstance(step, Decide):
            events: list[Payload | None] = [*ledger.consider().events]
        else:
            events = [told(ledger, step)]
        yield from (ledger.take(data) for data in events if data is not None)
