"""Count the past use of queues, by which the surplus is divided.

It is counted once in each period of `ledger.past_use`, so entitlements are constant in a period."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from apportion.core.devices.catalogue import type_matches
from apportion.core.ledger import past_use
from apportion.core.ledger.state import State
from apportion.core.placement.limits.capacity import Capacity
from apportion.core.placement.limits.entitlements import Memory
from apportion.core.placement.limits.quotas import CPU, MEMORY, MODEL, WORTH, Amount
from apportion.core.placement.limits.tree import QueueTree

_OF_HOST: Final = {CPU: past_use.CPU, MEMORY: past_use.MEMORY}
_NOTHING: Final[Mapping[str, int]] = {}


class QueuesPast:
    """The past use of each queue and of those below it, as of the start of a period."""

    def __init__(self, state: State, capacity: Capacity) -> None:
        self._state = state
        self._capacity = capacity
        self._now = 0  # the latest time of `tell_time`, in milliseconds
        self.counted: tuple[int, int] | None = None  # the period, and its length
        self._sums: dict[str, Counter[str]] = {}

    @property
    def memory(self) -> Memory | None:
        """Return how past use counts; None if it does not."""
        past = self._state.past_use
        if past is None:
            return None
        weight = self._state.configuration.queues.usage_weight
        milli = 1000 if weight is None else round(weight * 1000)
        return Memory(milli, past.horizon_ms) if milli else None

    @property
    def due(self) -> int:
        """Return when the next period begins, in microseconds since 1970; 0 without past use."""
        past = self._state.past_use
        return (past.period(self._now) + 1) * past.period_ms * 1000 if past is not None else 0

    def follow(self, tree: QueueTree) -> None:
        """Count again with this tree, because queues or the configuration changed."""
        self._tree = tree
        self.counted = None
        self._sums = {}

    def tell_time(self, now: int) -> bool:
        """Count again if a period begins by `now`, in microseconds since 1970. True if it does."""
        self._now = max(self._now, now // 1000)
        return self.count()

    def count(self) -> bool:
        """Count what queues used, unless that was done in this period. Return True if it changed.

        A period begins with the first event or `tell_time` in it."""
        past = self._state.past_use
        if past is None:
            return False
        period = past.period(self._now)
        if self.counted == (period, past.period_ms):
            return False
        self.counted = (period, past.period_ms)
        self._sums = {}
        for queue in past.queues:
            used = past.sums(queue, period)
            for name in self._tree.path_of(self._tree.account(queue)):
                self._sums.setdefault(name, Counter()).update(used)
        return True

    def sums(self, name: str) -> dict[str, int]:
        """Return the past use of the queue by resource, as in `ledger.past_use`, without zeros."""
        self.count()
        return {of: much for of, much in sorted(self._sums.get(name, _NOTHING).items()) if much}

    def of(self, name: str, amount: Amount) -> int:
        """Return the past use of an amount, in units of the amount times milliseconds.

        For memory and cores of devices, it is in proportion to the use of the devices."""
        sums = self._sums.get(name)
        if not sums:
            return 0
        if amount in _OF_HOST:
            return sums[_OF_HOST[amount]]
        devices = ((*of.partition("/")[::2], much) for of, much in sums.items())
        if amount[0] == MODEL:
            return sum(much for _, model, much in devices if type_matches(amount[1], model))
        if len(amount) == 1:
            return 0
        used = sum(much for family, model, much in devices if model and family == amount[1])
        if amount[0] == WORTH:
            return used
        total = self._capacity.total
        return used * total(amount) // max(total((WORTH, amount[1])), 1)
