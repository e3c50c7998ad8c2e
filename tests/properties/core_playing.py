"""Play the histories that `core_histories` draws, and check every scheduling decision in them.

A history has only events and decisions, so a real scheduler could meet every failure found here."""

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
    """Return the events of a decision, without refusals and evictions.

    A long-running engine and a new engine must agree on these events. Their refusals and evictions
    may differ."""
    untold = (PodRefused, PodEvicted)
    return [event for event in decision.events if not isinstance(event, untold)]


def evictions(decision: Decision) -> list[DecisionEvent]:
    return [event for event in decision.events if isinstance(event, PodEvicted)]


def unheard(decision: Decision, ledger: Ledger) -> set[str]:
    """Return the ids of the pods that this decision refuses and that the ledger does not show as
    refused yet."""
    refused = {event.pod for event in decision.events if isinstance(event, PodRefused)}
    return {uid for uid in refused if ledger.pod(uid).refusal is None}


def tried_again(fresh: Decision, decision: Decision) -> bool:
    """Return True if `fresh`, a new engine's decision, places a gang that `decision` does not.

    Tests that compare the two decisions allow this difference."""
    return bool(gangs_placed(fresh) - gangs_placed(decision))


def gangs_placed(decision: Decision) -> set[str]:
    """Return the gangs that have at least one pod placed by this decision."""
    return {pod.submitted.group for pod in decision.placed} - {""}


def decision_of(ledger: Ledger, step: Decide) -> Decision:
    """Let the ledger's engine decide, and return its decision without folding it.

    Check that deciding does not change the state, that a new engine makes the same decision, and
    that no two events of the decision are about the same pod."""
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
    """Return the event of a step that is not a decision.

    Return None if the step is an `Effect` and no pod is in the phase that it requires."""
    return step.about(ledger.state) if isinstance(step, Effect) else step


def follow(
    ledger: Ledger,
    steps: list[Step],
    watched: Callable[[State], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Play the history, and check the state's invariants after every event.

    The events of each decision are folded inside the context manager that `watched` returns."""
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
    """Let the engine decide until a decision has no events. Fail if that never happens."""
    for _ in range(ROUNDS_MAX):
        if not ledger.decide():
            return
    raise AssertionError("the engine never falls silent")


def changes(ledger: Ledger, steps: list[Step]) -> Iterator[Change]:
    """Play the history, and yield each change of the state. A new engine makes each decision."""
    for step in steps:
        if isinstance(step, Decide):
            events: list[Payload | None] = [*ledger.consider().events]
        else:
            events = [told(ledger, step)]
        yield from (ledger.take(data) for data in events if data is not None)
