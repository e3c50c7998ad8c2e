"""Which of the unschedulable shape queues an event may have helped, found without asking each.

Of each is kept what it wants of a host and of one kind of device. One pass over the nodes that
changed, whatever changed there, compares all of that at once; only those for which it is there are
asked in full. So what is unschedulable costs next to nothing while nothing could help it.

Invariant: one that `helped` leaves out fits on none of the nodes that changed since it was asked
last.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Known
from apportion.core.placement.index import ask_loops, packed
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.device_kinds import FIRST_KIND
from apportion.core.placement.index.packed import Int64, Int64s

SLACK: Final = 64  # more than twice those that were unschedulable, before all are asked


class Unschedulable:
    """Unschedulable shape queues by key, each with what it wants, or to be asked whatever happens.

    Some may stand here that are unschedulable no longer: who asks them finds out.
    """

    def __init__(self) -> None:
        self._as_of: tuple[int, int, Known] = (-1, 0, ())  # of which rows, kinds and geometries
        self._seen = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._slots) + len(self._always)

    def clear(self) -> None:
        """Every shape queue is to be asked."""
        self._slots: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._vacant: list[int] = []
        self._keep(np.full((0, FIRST_KIND), packed.NEVER, np.int64), np.zeros(0, np.int64))
        self._always: dict[bytes, None] = {}
        self._ordered: dict[bytes, None] = {}
        self._most = 0

    def add(self, key: bytes, ask: AskColumns | None, ordered: bool) -> None:  # noqa: FBT001
        """One more; `ask` is one that must fit before its pods do, None if that is unknown.

        `ordered`: whether it fits may depend on the order in which devices are tried.
        """
        self.forget(key)
        if ordered:
            self._ordered[key] = None
        if ask is None:
            self._always[key] = None
            return
        if not self._vacant:
            self._grow(2 * len(self._keys) + 1, self._needs.shape[1])
        if len(ask.needs) > self._needs.shape[1]:
            self._grow(len(self._keys), len(ask.needs))
        slot = self._slots[key] = self._vacant.pop()
        self._keys[slot] = key
        self._needs[slot] = packed.NEVER
        self._needs[slot, : len(ask.needs)] = ask.needs
        self._counts[slot] = ask.ask.count

    def forget(self, key: bytes) -> None:
        """Its shape queue is asked, or has gone."""
        self._always.pop(key, None)
        self._ordered.pop(key, None)
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._needs[slot] = packed.NEVER
            self._vacant.append(slot)

    def helped(self, columns: Columns, reordered: bool) -> list[bytes] | None:  # noqa: FBT001
        """Those to be asked for the room that there is since the last time; None for all.

        `reordered`: devices are tried in another order since. All are asked where the rows, the
        kinds of device or the ways to cut them are others now, and once in a while, so that those
        that have run empty are found.
        """
        seen, self._seen = self._seen, columns.changed.end
        before = self._as_of
        self._as_of = (columns.generation, len(columns.kinds), columns.geometries)
        if not len(self):
            return []
        rows = columns.changed.since(seen)
        if rows is not None and len(rows) > len(columns.every):
            rows = columns.every  # fewer
        self._most = self._most or 2 * len(self) + SLACK
        if before != self._as_of or rows is None or len(self) > self._most:
            return None
        count: Int64 = ask_loops.helped(
            rows.data,
            columns.flat_free,
            columns.flat_kind,
            self._flat_needs,
            self._flat_counts,
            columns.width,
            self._kinds,
            self._found,
        )
        if not count and not self._always and not reordered:
            return []
        keys = [self._keys[self._found[at]] for at in range(count)]
        return list(dict.fromkeys((*keys, *self._always, *(self._ordered if reordered else ()))))

    def _grow(self, slots: int, kinds: int) -> None:
        needs = np.full((slots, kinds), packed.NEVER, np.int64)
        needs[: self._needs.shape[0], : self._needs.shape[1]] = self._needs
        self._vacant += range(len(self._keys), slots)
        self._keys += [b""] * (slots - len(self._keys))
        self._keep(needs, np.resize(self._counts, slots))

    def _keep(self, needs: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """What each slot wants, by kind of device, and of how many devices; as loops take it."""
        self._needs, self._counts = needs, counts
        self._kinds: Int64 = needs.shape[1]
        self._flat_needs: Int64s = needs.reshape(-1).data
        self._flat_counts: Int64s = counts.data
        self._found: Int64s = np.zeros(len(counts), np.int64).data
