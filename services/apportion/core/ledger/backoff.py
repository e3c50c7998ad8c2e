"""How long a pod waits after agents refused its placements, and which node it then avoids.

The pause begins when a scheduler voids the placement, by that scheduler's clock. It is one second
and doubles with each failure in a row up to `LONGEST_S`; the count begins again once the pod's
shares are allocated. Invariant: the answer follows from the events alone.
"""

from typing import Final

from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import Backoff, PodState

LONGEST_S: Final = 300
DOUBLINGS_MAX: Final = 16


def after_failure(pod: PodState, node: str) -> Backoff:
    """One more refusal of the pod's placements, by this node's agent; the pause has not begun."""
    return Backoff(pod.backoff.failures + 1 if pod.backoff is not None else 1, node, 0)


def paused(found: Backoff, time: str) -> Backoff:
    """The pause of a pod whose placement was voided at that time."""
    pause_s = min(1 << min(found.failures - 1, DOUBLINGS_MAX), LONGEST_S)
    moment = micros_of(time)
    until = 0 if moment is None else moment + pause_s * SECOND
    return Backoff(found.failures, found.node, until)
