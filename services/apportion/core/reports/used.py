"""What shares were used for, by what their nodes tell every hour; and shares that did nothing.

A record is about the seconds before it; what of these lies in the period, and in each step of it,
counts in proportion. A share did nothing while its record tells no work of the card: where neither
driver nor region tells the work, while it held no memory. Invariant: a record counts once, however
its seconds lie to the steps."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from apportion.core.ledger.moments import HOUR, SECOND
from apportion.core.ledger.state import PodState, State
from apportion.core.reports.meters import CARD, Key, Meters
from apportion.core.reports.rows import UNNAMED, By
from apportion_schemas import ShareUsed, UsageRecorded

IDLE: Final = HOUR - 60 * SECOND
"""An hour, but for what a node may need to look."""
GAP: Final = HOUR // 2
"""A share of which nobody told for longer is not known to have done nothing."""
ENDED_MAX: Final = 100_000
"""Pods that ended and may still be told of; the oldest go first."""
IDLE_MAX: Final = 200_000


class UsedSums(Struct):
    """Of shares that were looked at: cards granted and cards at work (millionths times
    microseconds), and MiB used (times microseconds)."""

    reported: int = 0
    cards: int = 0
    mib: int = 0


class Idle(Struct):
    """A stretch in which one share did nothing, in microseconds of the period."""

    row: str
    namespace: str
    name: str
    uid: str
    container: str
    device: str
    model: str
    node: str
    cards: int
    mib: int
    start: int
    end: int
    going_on: bool = True


_Share = tuple[str, str, str, object]


class Used:
    """What the records of one period come to; `reported`: there is one, whatever it says."""

    def __init__(self, by: By, meters: Meters) -> None:
        self.reported = False
        self._by, self._meters = by, meters
        self._rows: dict[str, str] = {}
        self._cells: dict[tuple[int, Key], UsedSums] = {}
        self._idle: dict[_Share, Idle] = {}
        self._done: list[Idle] = []

    def leave(self, pod: PodState, row: str) -> None:
        """The pod has ended, and its last hour is told of later."""
        self._rows[pod.uid] = row
        if len(self._rows) > ENDED_MAX:
            del self._rows[next(iter(self._rows))]

    def take(self, state: State, data: UsageRecorded, now: int) -> None:
        """One record, which was written `now`."""
        began = now - data.seconds * SECOND
        self.reported |= began < self._meters.end and now > self._meters.start
        node = state.nodes.get(data.node)
        for used in data.shares:
            known = node.by_id.get(used.device) if node else None
            device = known.device if known is not None else None
            model = device.model if device is not None else "unknown"
            cards = CARD
            if device is not None and used.memory_mib and device.memory_mib:
                cards = min(used.memory_mib * CARD // device.memory_mib, CARD)
            elif device is not None and device.cores:
                cards = min(used.cores * CARD // device.cores, CARD)
            pod, row = state.pods.get(used.pod), self._rows.get(used.pod)
            if pod is not None:
                row = self._by.row_of(state, pod, data.node)
            elif row is None:
                named = {"namespace": used.namespace, "node": data.node}
                row = named.get(self._by.kind, UNNAMED)
            most = device.cores if device is not None and device.cores else 100
            self._add(used, (row, model), (began, now), (cards, most))
            self._watch(used, data.node, (row, model), (now, cards))

    def cells(self) -> Iterator[tuple[int, Key, UsedSums]]:
        """What came in each step, by row and model."""
        for (step, key), sums in self._cells.items():
            yield step, key, sums

    def idle(self) -> list[Idle]:
        """The stretches of an hour or more, the most cards times time first."""
        stretches = [*self._done, *(each for each in self._idle.values() if _long(each))]
        return sorted(
            stretches,
            key=lambda each: (-(each.end - each.start) * each.cards, each.start, each.name),
        )

    def _add(self, used: ShareUsed, key: Key, when: tuple[int, int], size: tuple[int, int]) -> None:
        """What of the record lies in each step."""
        start, end = when
        whole = max(end - start, 1)
        looked, (cards, most) = used.seconds * SECOND, size
        at = max(start, self._meters.start)
        while at < min(end, self._meters.end):
            step = self._meters.step_of(at)
            until = min(self._meters.edges(step)[1], end)
            sums = self._cells.setdefault((step, key), UsedSums())
            part = until - at
            if used.cores_seconds is not None:
                sums.reported += cards * looked * part // whole
                sums.cards += used.cores_seconds * SECOND * CARD * part // (most * whole)
            sums.mib += used.memory_mib_seconds * SECOND * part // whole
            at = until

    def _watch(self, used: ShareUsed, node: str, key: Key, now: tuple[int, int]) -> None:
        """Whether it did nothing, and goes on doing nothing."""
        end, cards = min(now[0], self._meters.end), now[1]
        start = max(now[0] - used.seconds * SECOND, self._meters.start)
        which = (used.pod, used.container, used.device, used.instance)
        before = self._idle.get(which)
        if before is not None and start - before.end > GAP:
            self._end(which)
            before = None
        worked = used.cores_seconds or used.cores_peak
        if used.cores_seconds is None:
            worked = used.memory_mib_peak
        if not used.seconds or worked or end <= start:
            if before is not None and end > start:
                self._end(which)
        elif before is not None:
            before.end = max(end, before.end)
        elif len(self._idle) < IDLE_MAX:
            self._idle[which] = Idle(
                key[0], used.namespace, used.name, used.pod, used.container, used.device, key[1],
                node, cards, used.memory_mib, start, end,
            )  # fmt: skip

    def _end(self, which: _Share) -> None:
        ended = self._idle.pop(which)
        ended.going_on = False
        if _long(ended) and len(self._done) < IDLE_MAX:
            self._done.append(ended)


def _long(stretch: Idle) -> bool:
    return stretch.end - stretch.start >= IDLE
