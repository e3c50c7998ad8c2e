"""Table of which events can end which refusal, built from the hints of all causes.

Invariant: if a refused pod can be placed now, an event in the hints of its reasons made that
possible. A property test checks this against many histories."""

from typing import Final

from apportion.core.ledger.handlers.change import Change
from apportion.core.placement.feasibility.causes import CAUSES
from apportion.core.placement.feasibility.descriptors import (
    COMPLETED,
    FREED,
    GANG,
    MOVED,
    ORDERED,
    REFUSED,
    TAKEN,
    Hint,
)
from apportion.core.placement.index.packed import Int64
from apportion_schemas import PodGroupObserved, RefusalCode

BY_REASON: Final[dict[RefusalCode, tuple[Hint, ...]]] = {
    code: cause.hints for code, cause in CAUSES.items()
}  # with several reasons, each event of any of them may help
# for any refusal of a gang: it may lack fewer pods, have others, or get other nodes
OF_GANGS: Final = (*COMPLETED, *ORDERED)
# for a gang that is not declared yet, whose refusal is not reported
UNDECLARED: Final = (Hint(PodGroupObserved, GANG),)


def _by_event() -> dict[type, tuple[int, ...]]:
    # For each event, the shape queues to wake, indexed by the effect of the event.
    found: dict[type, list[int]] = {}
    for hint in (hint for row in (*BY_REASON.values(), OF_GANGS, UNDECLARED) for hint in row):
        whom = found.setdefault(hint.event, [0] * (2 * FREED))
        for happened in range(len(whom)):
            whom[happened] |= hint.asks if hint.when & happened else 0
    return {event: tuple(whom) for event, whom in found.items()}


# the same table by event: which shape queues it wakes, indexed by its effect
BY_EVENT: Final = _by_event()


def asked(change: Change, moved: bool, freed: bool) -> Int64:  # noqa: FBT001 - hot path
    """Return which shape queues the event may help: a mask of `SOME`, `REORDERED` and `GANG`."""
    kind = type(change.data)
    if kind not in BY_EVENT:
        return 0
    happened: Int64 = REFUSED if change.refused else TAKEN
    if moved:
        happened = happened | MOVED
    if freed:
        happened = happened | FREED
    found: Int64 = BY_EVENT[kind][happened]
    return found
