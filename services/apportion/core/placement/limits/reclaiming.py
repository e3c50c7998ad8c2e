"""Decide which pods of other queues may be evicted, so that a queue gets what it is entitled to.

The common queue is the nearest queue above both the pod's queue and the victim's queue. On the path
from the pod's queue up to the common queue, each queue must stay within its entitlement with the
pod and with all pods of its gang that are placed together. On the path from the victim's queue,
each queue must exceed its entitlement. The common queue itself does not count. Pods that are being
evicted count as gone. Pods for which others are being evicted count as placed.

A queue always gets back what it owns (what it deserves), even if the victim is a gang that is
larger than what the victim's queue borrows. A queue gets a part of the surplus only if the victim's
queue keeps at least as large a fraction of its entitlement as the taking queue then has. So two
queues never evict each other's pods in turn. With `queues.reclaimSurplus: false`, a queue gets back
only what it owns.

Past use never causes an eviction, because it changes with time. The taking queue must stay within
its entitlements with and without past use, and the victim's queue must exceed both of its own."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from apportion.core.devices.worth import DEVICE
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.limits.entitlements import Part
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import WORTH, Amount

_NO_PART: Final = Part()
Unit = Sequence[PodState]  # pods that are evicted together


class Reclaim:
    """What one pod may reclaim at this moment; `now` is in microseconds since 1970.

    `others` are pods of its queue that will be placed with it, and `ahead` those that take back
    devices before it, so the queue must be entitled to all of them. `devices` is how many the pod
    and the others need."""

    def __init__(
        self,
        state: State,
        queues: Queues,
        pod: PodState,
        now: int,
        *,
        others: Unit = (),
        ahead: Unit = (),
    ) -> None:
        self._state, self._queues, self._now = state, queues, now
        self.safe_until = 0  # when the first of the pods that were safe may be evicted
        self._needs = Counter(queues.needs(pod))
        self._own = queues.path_of(queues.account_of(pod))
        self.wanted = self._amounts()
        self._add(others)
        worth = (
            much for (of, *more), much in self._needs.items() if of == WORTH and len(more) == 1
        )
        self.devices = sum(worth) / DEVICE
        self._add(ahead)
        self._moved: dict[str, Counter[Amount]] = {}  # since the ledger's newest placements
        for uid in state.evictions:
            if uid in state.pods:
                self._move(self._moved, state.pods[uid], -1)
        for uid in state.nominated:
            other = state.pods.get(uid)
            if other is not None and other is not pod and other.placement is None:
                self._move(self._moved, other, 1)
        surplus = state.configuration.queues.reclaim_surplus
        self._rights: dict[str, str] = {}  # what both queues have in common: the own queue below it
        needed = [each for each in queues.all_named() if self._needs.get(each, 0)]
        for below, above in pairwise(self._own):
            rights = {each: self._part(below, each).least for each in (*self.wanted, *needed)}
            if not surplus:
                rights |= {each: self._part(below, each).owned for each in self.wanted}
            if any(
                self._used(below, each) + self._needs[each] > much for each, much in rights.items()
            ):
                break
            self._rights[above] = below

    def __bool__(self) -> bool:
        """Return True if the pod may reclaim anything."""
        return bool(self._rights)

    def allows(self, units: Iterable[Unit]) -> bool:
        """Return True if all of these units together may be evicted for the pod."""
        moved = {name: Counter(amounts) for name, amounts in self._moved.items()}
        return all(self._take(unit, moved) for unit in units)

    def _take(self, unit: Unit, moved: dict[str, Counter[Amount]]) -> bool:
        # Whether the unit may be evicted, too. It is among the moved ones from now on.
        path = self._queues.path_of(self._queues.account_of(unit[0]))
        branch = [name for name in path if name not in self._own]
        mine = self._rights.get(path[len(branch)]) if branch else None
        if mine is None or not all(self._evictable(each, branch, path) for each in unit):
            return False
        taken = Counter[Amount]()
        for each in unit:
            taken.update(self._queues.taken(each))
        used = [each for each in self.wanted if taken[each] > 0]
        for name in branch:
            if not any(
                self._used(name, each, moved) > self._part(name, each).most for each in used
            ):
                return False
        # The queue may take all that it deserves.
        owned = all(
            self._used(mine, each) + self._needs[each] <= self._part(mine, each).owned
            for each in self.wanted
        )
        if not owned and not all(
            self._keeps(branch[-1], mine, each, taken[each], moved) for each in used
        ):
            return False
        for each in unit:
            self._move(moved, each, -1)
        return bool(used)

    def _keeps(
        self, name: str, mine: str, amount: Amount, taken: int, moved: dict[str, Counter[Amount]]
    ) -> bool:
        # Whether the queue keeps at least as large a part of its entitlement as the taking one has.
        left = self._used(name, amount, moved) - taken
        have = self._used(mine, amount) + self._needs[amount]
        return left * self._part(mine, amount).least >= have * self._part(name, amount).most

    def _evictable(self, pod: PodState, branch: Sequence[str], path: Sequence[str]) -> bool:
        queues = self._state.queues
        if not pod.submitted.evictable:
            return False
        if not all(queues[name].reclaimable for name in branch if name in queues):
            return False
        said = (queues[name].safe_s for name in path if name in queues)
        safe_s = next((each for each in said if each), 0)  # of the nearest queue that says so
        until = (micros_of(pod.placed_time) or 0) + safe_s * 1_000_000
        if until > self._now:
            self.safe_until = min(until, self.safe_until or until)
        return until <= self._now

    def _add(self, pods: Unit) -> None:
        alike = Counter(each.shape_key for each in pods)
        for each in {each.shape_key: each for each in pods}.values():
            for amount, much in self._queues.needs(each).items():
                self._needs[amount] += alike[each.shape_key] * much

    def _amounts(self) -> list[Amount]:
        # What the nearest queue names that says what it deserves; else devices, or the host.
        for name in self._own:
            named = [each for each in self._queues.named(name) if self._needs.get(each, 0)]
            if named:
                return named
        asked = [each for each in self._queues.parts(self._own[0]) if self._needs.get(each, 0)]
        return [each for each in asked if each[0] == WORTH] or asked

    def _move(self, moved: dict[str, Counter[Amount]], pod: PodState, times: int) -> None:
        amounts = self._queues.taken(pod) if times < 0 else self._queues.needs(pod)
        for name in self._queues.path_of(self._queues.account_of(pod)):
            found = moved.setdefault(name, Counter())
            for amount, much in amounts.items():
                found[amount] += times * much

    def _used(
        self, name: str, amount: Amount, moved: dict[str, Counter[Amount]] | None = None
    ) -> int:
        found = (self._moved if moved is None else moved).get(name)
        return self._queues.used(name).get(amount, 0) + (found[amount] if found else 0)

    def _part(self, name: str, amount: Amount) -> Part:
        return self._queues.parts(name).get(amount, _NO_PART)
