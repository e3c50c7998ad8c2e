"""Decisions as the scheduler asks for them.

Invariant: a decision without events is the engine's last word, not a pause in a long look."""

from apportion.core.placement.engine import EVENTS_MAX, LOOKS_MAX, Decision, Engine


def decided(
    engine: Engine, *, events_max: int = EVENTS_MAX, looks_max: int = LOOKS_MAX
) -> Decision:
    """The next decision that says something, or that nothing is to be said."""
    while True:
        decision = engine.decide(events_max=events_max, looks_max=looks_max)
        if decision.events or not decision.more:
            return decision
