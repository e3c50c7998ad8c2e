"""What was refused of agents, said aloud: once for each node and cause, not once for each message.

In the log, and as an event of the node, so that people see it wherever they look. Invariant: an
agent that goes on and on fills neither the log, nor the memory, nor the ledger: an event's id has
the hour in it, so that several intakes say it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from apportion.core.intake.answers import EXPECTED, refused_id
from apportion.core.intake.judging import Refusal
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import ReportRefused
from apportion_schemas.quantities import TEXT_MAX

QUIET_S: Final = 3_600.0
"""For so long the same cause of the same node is not said again."""
SAID_MAX: Final = 10_000

WAITING_MAX: Final = 1_000
"""Events that are not appended yet; what comes beyond is in the log alone."""

_log = get_logger(__name__)


class Refusals:
    """What was said of whom, and when."""

    def __init__(self, publisher: Publisher, clock: Clock, metrics: Metrics) -> None:
        self._publisher = publisher
        self._clock = clock
        self._waiting: asyncio.Queue[ReportRefused] = asyncio.Queue(WAITING_MAX)
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
        if not self._waiting.full():
            message = refusal.why[:TEXT_MAX]
            refused = ReportRefused(node=node, cause=refusal.cause, message=message)
            self._waiting.put_nowait(refused)

    async def tell(self, revision: Callable[[], int]) -> None:
        """Append what was refused, until cancelled; `revision` is how far the ledger was read."""
        while True:
            refused = await self._waiting.get()
            hour = int(self._clock.now().timestamp() // QUIET_S)
            name = refused_id(refused.node, refused.cause, hour)
            await self._publisher.publish(refused, event_id=name, basis=revision())
