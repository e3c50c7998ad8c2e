"""The gateway's fold: the state, pods by name, a window of the newest events, and forecasts.

All clients of the event stream read this window by a cursor; a client that falls behind the window
reads the ledger. Invariant: the window has the newest events without a gap, limited in number and
bytes."""

import asyncio
import contextlib
import itertools
import logging
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator

from apportion.core.answers.reads import StartForecast
from apportion.core.bounded import remember
from apportion.core.forecast.line import Line
from apportion.core.ledger.fold import Change
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import PodState, State
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import Event, EventError, PodAdopted, PodGone, PodSubmitted

_log = logging.getLogger(__name__)
WINDOW_EVENTS = 8_192
WINDOW_BYTES = 16 << 20
GONE_PODS = 20_000  # more than can end within the window


class Feed(StateFold):
    """Folds the ledger; `state` is complete up to `state.revision`."""

    def __init__(
        self,
        state: State | None = None,
        *,
        events: int = WINDOW_EVENTS,
        size_bytes: int = WINDOW_BYTES,
        clock_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Begin with a state. Forecasts treat no event as later than `clock_s` (since 1970)."""
        super().__init__(state)
        self._events = events
        self._bytes = size_bytes
        self._window: deque[Record] = deque()
        self._window_bytes = 0
        self._pods: dict[str, dict[str, PodState]] = {}
        self._gone: dict[str, str] = {}
        self._waiting: asyncio.Event | None = None
        self._clock_s = clock_s
        self._line: Line | None = Line(self.state, clock_s=clock_s)
        for pod in self.state.pods.values():
            self._pods.setdefault(pod.full_name, {})[pod.uid] = pod

    def apply(self, record: Record, event: Event) -> Change:
        """Fold the event, update the pods by name, and add the record to the window."""
        change = super().apply(record, event)
        data, pod = change.data, change.pod
        if pod is None or change.refused:
            pass
        elif isinstance(data, PodSubmitted | PodAdopted):
            self._pods.setdefault(pod.full_name, {})[pod.uid] = pod
        elif isinstance(data, PodGone):
            named = self._pods[pod.full_name]
            del named[pod.uid]
            remember(self._gone, pod.uid, pod.submitted.namespace, most=GONE_PODS)
            if not named:
                del self._pods[pod.full_name]
        if self._line is not None and not change.refused:
            with self._forecasting():
                self._line.observe(data, _seconds(event))
        self._note(record)
        return change

    def refuse(self, record: Record, reason: str) -> Change:
        """Skip an unreadable record, but add it to the window."""
        change = super().refuse(record, reason)
        self._note(record)
        return change

    def pod(self, full_name: str) -> PodState | None:
        """Return the newest live pod with this `namespace/name`, or None."""
        found = self._pods.get(full_name)
        return next(reversed(found.values())) if found else None

    def forecast(self, pod: PodState) -> StartForecast | None:
        """Return when a pending pod should start, or why that is unknown.

        Return None for other pods, and for all pods after forecasts have failed."""
        found = None
        if self._line is not None:
            with self._forecasting():
                found = self._line.forecast(pod)
        return found

    def forecasts_in(self, state: State) -> Callable[[PodState], StartForecast | None]:
        """Return forecasts for the pods of another state, such as a plan's, as `forecast` does."""
        other = None
        if self._line is not None:
            with self._forecasting():
                other = self._line.copied(state)

        def forecast(pod: PodState) -> StartForecast | None:
            found = None
            if other is not None and self._line is not None:
                with self._forecasting():
                    found = other.forecast(pod)
            return found

        return forecast

    @contextlib.contextmanager
    def _forecasting(self) -> Iterator[None]:
        # A fault of a forecast ends all forecasts of this process, but not the fold or an answer.
        try:
            yield
        except Exception:  # noqa: BLE001 - any fault of an estimate
            _log.exception("forecasts of starts stopped, because of a bug in this build")
            self._line = None

    def look_back(self) -> Callable[[Record], bool]:
        """Return a function that takes past records in order, until it returns False.

        The function learns from the records how long pods run and wait. At the feed's newest event
        it returns False, and forecasts then use what it has learned."""
        past = Line(self.state, empty=True, clock_s=self._clock_s)

        def take(record: Record) -> bool:
            revision, refused = record.revision, self.state.refused_events
            at = bisect_left(refused, revision, key=lambda each: each.revision)
            skipped = at < len(refused) and refused[at].revision == revision
            with self._forecasting():
                if revision <= self.state.revision and not skipped:
                    with contextlib.suppress(EventError):
                        event = self.rules.read(revision, record.subject, record.payload)
                        past.observe(event.data, _seconds(event))
                if self._line is not None and revision >= self.state.revision:
                    past.meet(self.state)
                    self._line = past
                    return False
            return self._line is not None

        return take

    def namespace_of(self, uid: str) -> str:
        """Return the namespace of a live or recently ended pod; "" if it is unknown."""
        pod = self.state.pods.get(uid)
        if pod is not None:
            return pod.submitted.namespace
        rejected = self.state.rejected.get(uid)
        return rejected.namespace if rejected is not None else self._gone.get(uid, "")

    def after(self, revision: int, limit: int) -> list[Record] | None:
        """Return up to `limit` events after `revision`, or None if the window begins later."""
        if revision >= self.state.revision:
            return []
        if not self._window or self._window[0].revision > revision + 1:
            return None
        skipped = revision + 1 - self._window[0].revision
        return list(itertools.islice(self._window, skipped, skipped + limit))

    async def reached(self, revision: int) -> None:
        """Wait until the event at `revision` is folded."""
        while self.state.revision < revision:
            if self._waiting is None:
                self._waiting = asyncio.Event()
            await self._waiting.wait()

    def _note(self, record: Record) -> None:
        self._window.append(record)
        self._window_bytes += len(record.payload)
        while len(self._window) > self._events or self._window_bytes > self._bytes:
            self._window_bytes -= len(self._window.popleft().payload)
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None


def _seconds(event: Event) -> float:
    return (micros_of(event.time) or 0) / SECOND
