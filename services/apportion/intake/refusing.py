"""What was refused of agents, said aloud: once for each node and cause, not once for each message.

Invariant: an agent that goes on and on fills neither the log nor the memory.
"""

from __future__ import annotations

from typing import Final

from apportion.core.intake.answers import EXPECTED
from apportion.core.intake.judging import Refusal
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics

QUIET_S: Final = 3_600.0
"""For so long the same cause of the same node is not said again."""
SAID_MAX: Final = 10_000

_log = get_logger(__name__)


class Refusals:
    """What was said of whom, and when."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        self._refused = metrics.counter(
            "apportion_intake_refused_total", "Events of agents that were refused.", ("cause",)
        )

    def note(self, node: str, refusal: Refusal) -> None:
        """An event of this node's agent was refused."""
        self._refused.labels(refusal.cause).inc()
        if refusal.cause in EXPECTED:
            return
        key = node, refusal.cause
        now_s = self._clock.monotonic()
        if now_s - self._said.get(key, -QUIET_S) < QUIET_S:
            return
        self._said.pop(key, None)
        if len(self._said) >= SAID_MAX:
            del self._said[next(iter(self._said))]
        self._said[key] = now_s
        _log.error("refused a report", node=node, cause=refusal.cause, why=refusal.why)
