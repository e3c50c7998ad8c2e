"""Call the engine for decisions as the scheduler does.

Invariant: a decision without events means that nothing is left to decide, not that a long search
was paused."""

from apportion.core.placement.engine import EVENTS_MAX, LOOKS_MAX, Decision, Engine


def decided(
    engine: Engine, *, events_max: int = EVENTS_MAX, looks_max: int = LOOKS_MAX
) -> Decision:
    """Return the next decision that has events, or an empty one if nothing is left to decide."""
    while True:
        decision = engine.decide(events_max=events_max, looks_max=looks_max)
        if decision.events or not decision.more:
            return decision
