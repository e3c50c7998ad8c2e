"""Add up how much of their shares pods used, from nodes' hourly reports, and find idle periods.

If a report covers several steps, its usage is divided in proportion to time. A share is idle if its
record shows no core time and no core peak, or, if cores are not measured, no memory. Invariant: a
record counts once, however steps divide it."""

from collections import defaultdict
from typing import Final

from msgspec import Struct

from apportion.core.bounded import remember
from apportion.core.ledger.moments import HOUR, SECOND
from apportion.core.ledger.state import PodState, State
from apportion.core.reports.meters import CARD, Key, Meters
from apportion.core.reports.rows import UNNAMED, By
from apportion_schemas import ShareUsed, UsageRecorded

IDLE: Final = HOUR  # shortest idle period that is reported by default
GAP: Final = HOUR // 2  # a longer time without reports does not count as idle
ENDED_MAX: Final = 100_000  # ended pods that may still be reported; the oldest are dropped first
IDLE_MAX: Final = 200_000


class UsedSums(Struct):
    """The usage in a period, as integrals over microseconds."""

    reported: int = 0  # device millionths with reported usage
    cards: int = 0  # device millionths used
    mib: int = 0
    measured: int = 0  # device millionths with reported usage, of compute or of memory
    idle: int = 0  # of these, in reports that show no work


class Idle(Struct):
    """A period in which one share was idle, in microseconds."""

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
    """Adds up the usage of one period. `reported` is True if any node reported usage in it."""

    def __init__(self, state: State, by: By, meters: Meters, idle: int = IDLE) -> None:
        """Start with no usage. Ignore idle periods below `idle` microseconds."""
        self.reported = False
        # a minute of an hour is the tolerance of a node's sampling
        self._least = idle - idle // 60
        self._state, self._by, self._meters = state, by, meters
        self._rows: dict[str, str] = {}
        self.cells: defaultdict[tuple[int, Key], UsedSums] = defaultdict(UsedSums)  # by step
        self._idle: dict[_Share, Idle] = {}
        self._done: list[Idle] = []

    def leave(self, pod: PodState, row: str) -> None:
        """Remember the row of a pod that has ended, because its last hour is reported later."""
        remember(self._rows, pod.uid, row, most=ENDED_MAX)

    def take(self, data: UsageRecorded, now: int) -> None:
        """Add the usage in one hourly report, which was written at `now`."""
        state, began = self._state, now - data.seconds * SECOND
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
                row = self._by.row_of(state, pod, data.node, model)
            elif row is None or self._by.of_devices:
                named = {"namespace": used.namespace, "node": data.node, "model": model}
                row = named.get(self._by.kind, UNNAMED)
            most = device.cores if device is not None and device.cores else 100
            self._add(used, (row, model), (began, now), (cards, most))
            self._watch(used, data.node, (row, model), (now, cards))

    def idle(self) -> list[Idle]:
        """Return the idle periods that are long enough, most device time first."""
        for each in self._idle.values():  # the last report comes after the end of the share
            pod = self._state.pods.get(each.uid)
            placed = pod.placement if pod is not None else None
            each.going_on = placed is not None and each.device in {s.device for s in placed.shares}
        found = [*self._done, *(each for each in self._idle.values() if self._long(each))]
        found.sort(key=lambda each: (-(each.end - each.start) * each.cards, each.start, each.name))
        return found

    def _add(self, used: ShareUsed, key: Key, when: tuple[int, int], size: tuple[int, int]) -> None:
        start, end = when
        whole = max(end - start, 1)
        looked, (cards, most) = used.seconds * SECOND, size
        at = max(start, self._meters.start)
        while at < min(end, self._meters.end):
            step = self._meters.step_of(at)
            until = min(self._meters.edges(step)[1], end)
            sums = self.cells[step, key]
            part = until - at
            if used.cores_seconds is not None:
                sums.reported += cards * looked * part // whole
                sums.cards += used.cores_seconds * SECOND * CARD * part // (most * whole)
            sums.mib += used.memory_mib_seconds * SECOND * part // whole
            measured = cards * looked * part // whole
            sums.measured += measured
            sums.idle += 0 if _worked(used) else measured
            at = until

    def _watch(self, used: ShareUsed, node: str, key: Key, now: tuple[int, int]) -> None:
        end, cards = min(now[0], self._meters.end), now[1]
        start = max(now[0] - used.seconds * SECOND, self._meters.start)
        which = (used.pod, used.container, used.device, used.instance)
        before = self._idle.get(which)
        if before is not None and start - before.end > GAP:
            self._end(which)
            before = None
        if not used.seconds or _worked(used) or end <= start:
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
        if self._long(ended) and len(self._done) < IDLE_MAX:
            self._done.append(ended)

    def _long(self, stretch: Idle) -> bool:
        return stretch.end - stretch.start >= self._least


def _worked(used: ShareUsed) -> bool:
    if used.cores_seconds is None:
        return used.memory_mib_peak > 0
    return used.cores_seconds > 0 or bool(used.cores_peak)
