"""Which event can make which refusal pass: the hints of all causes, joined by event.

Like the queueing hints of kube-scheduler: every reason to wait names the events that can end it,
and what must have come of the event. An event that stands in no row helps nobody. The engine asks
by the event: `asked` joins all rows that name it, for the reasons that a shape queue was given may
have become others since.

Invariant: whatever lets a pod have a place that had none is an event of a row of that pod's
reasons; a property test plays histories against the table."""

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
from apportion_schemas import (
    ConfigurationChanged,
    PodGroupObserved,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    RefusalCode,
)

LIMITS_SET: Final = frozenset((QueueObserved, QuotaObserved, QuotaGone, ConfigurationChanged))
"""Events that set limits, or say what those that there are mean."""

BY_REASON: Final[dict[RefusalCode, tuple[Hint, ...]]] = {
    code: cause.hints for code, cause in CAUSES.items()
}
"""A refusal, and what can make it pass; of several reasons each event of any row may."""
OF_GANGS: Final = (*COMPLETED, *ORDERED)
"""Whatever a gang was refused for: it may lack fewer pods, have others, or take other places."""
UNDECLARED: Final = (Hint(PodGroupObserved, GANG),)
"""What helps a gang of which nobody knows what it needs; it is refused by silence."""


def _by_event() -> dict[type, tuple[int, ...]]:
    """For each event whom it lets be asked, all rows that name it joined, by what came of it."""
    found: dict[type, list[int]] = {}
    for hint in (hint for row in (*BY_REASON.values(), OF_GANGS, UNDECLARED) for hint in row):
        whom = found.setdefault(hint.event, [0] * (2 * FREED))
        for happened in range(len(whom)):
            whom[happened] |= hint.asks if hint.when & happened else 0
    return {event: tuple(whom) for event, whom in found.items()}


BY_EVENT: Final = _by_event()
"""The same table the other way round: whom an event lets be asked, at the place of what came of it.
"""


def asked(change: Change, moved: bool, freed: bool) -> Int64:  # noqa: FBT001 - of a hot path
    """Whom the event lets be asked again: `SOME`, `REORDERED` and `GANG`, or 0 for nobody.

    `moved` and `freed` say what came of it: see `MOVED` and `FREED`."""
    whom = BY_EVENT.get(type(change.data))
    if whom is None:
        return 0
    happened: Int64 = REFUSED if change.refused else TAKEN
    if moved:
        happened = happened | MOVED
    if freed:
        happened = happened | FREED
    found: Int64 = whom[happened]
    return found
