"""How much each queue used in the past, where older use counts less: half after each half-life.

A half-life has 64 periods, which begin at multiples of their length since 1970. A sum decays when a
period begins, so it is exact at these moments. All of it is arithmetic with integers on the times
of events, so every reader of a ledger gets the same sums, whenever it restarts.

Amounts are thousandths of a device or of a CPU, and MiB of memory. Sums are amounts times
milliseconds. Invariant: a queue's rate is the sum over its placed pods."""

from collections.abc import Mapping
from math import isqrt
from typing import Final

from msgspec import Struct

CPU: Final = "cpu"
MEMORY: Final = "memory"
PERIODS: Final = 64  # in a half-life: a power of two
_BITS: Final = 64
_ONE: Final = 1 << _BITS
FORGOTTEN: Final = 60_000_000  # one device for a minute: a queue without pods that has less is new


def _factors() -> tuple[int, ...]:
    # What is left after 0, 1, … 63 periods, as parts of `_ONE`. Roots are of twice the precision.
    root = 1 << (2 * _BITS - 1)
    for _ in range(PERIODS.bit_length() - 1):
        root = isqrt(root << 2 * _BITS)
    found = [1 << 2 * _BITS]
    while len(found) < PERIODS:
        found.append(found[-1] * root >> 2 * _BITS)
    return tuple(each >> _BITS for each in found)


_FACTORS: Final = _factors()


def of_device(family: str, model: str) -> str:
    """Return the name under which use of a device model counts."""
    return f"{family}/{model}"


class Use(Struct, array_like=True, gc=False):
    """The use of one resource by one queue, up to the time `since`."""

    rate: int = 0  # now
    since: int = 0  # milliseconds since 1970
    closed: int = 0  # the sum as of the start of this period
    running: int = 0  # what was used in this period


class KeptUse(Struct, array_like=True):
    """`PastUse` as snapshots and digests have it: with sums as text, which may exceed 64 bits."""

    half_life_ms: int
    time: int
    queues: dict[str, dict[str, tuple[int, int, str, str]]]


Held = tuple[str, Mapping[str, int]]  # the queue of a pod, and what the pod uses


class PastUse(Struct):
    """The past use of all queues up to `time`, by queue and then by resource."""

    half_life_ms: int
    time: int = 0  # milliseconds since 1970: of the newest event
    queues: dict[str, dict[str, Use]] = {}
    held: dict[str, Held] = {}  # what each placed pod adds to the rates, by uid

    @property
    def period_ms(self) -> int:
        """Return how long a period is."""
        return max(self.half_life_ms // PERIODS, 1)

    @property
    def horizon_ms(self) -> int:
        """Return the sum, in milliseconds, to which a constant use of 1 converges."""
        return self.period_ms * _FACTORS[1] // (_ONE - _FACTORS[1])

    def period(self, now: int = 0) -> int:
        """Return the number of the period of `now`, or of the newest event if that is later."""
        return max(self.time, now) // self.period_ms

    def sums(self, queue: str, period: int) -> dict[str, int]:
        """Return what the queue used before the start of this period, by resource."""
        return {of: self._at(use, period) for of, use in self.queues.get(queue, {}).items()}

    def go_to(self, moment: int) -> None:
        """Move the time forward. In a new period, drop queues whose past use is almost zero."""
        before = self.period()
        self.time = max(self.time, moment)
        period = self.period()
        if period == before:
            return
        for queue, uses in list(self.queues.items()):
            if not any(each.rate or self._at(each, period) > FORGOTTEN for each in uses.values()):
                del self.queues[queue]

    def change_half_life(self, half_life_ms: int) -> None:
        """Use another half-life from now on; each queue keeps its fraction of the total."""
        for uses in self.queues.values():
            for use in uses.values():
                self._settle(use)
                use.closed = (use.closed + use.running) * half_life_ms // self.half_life_ms
                use.running = 0
        self.half_life_ms = half_life_ms

    def hold(self, uid: str, held: Held | None) -> None:
        """Set what a pod uses from now on; None for a pod that is not placed."""
        before = self.held.pop(uid, None)
        if held is not None:
            self.held[uid] = held
        if before == held:
            return
        for each, sign in ((before, -1), (held, 1)):
            if each is not None:
                uses = self.queues.setdefault(each[0], {})
                for of, much in each[1].items():
                    use = uses.get(of)
                    if use is None:
                        use = uses[of] = Use(since=self.time)
                    self._settle(use)
                    use.rate += sign * much

    def kept(self) -> KeptUse:
        """Return what a snapshot stores; the rest follows from the pods."""
        queues = {
            queue: {
                of: (use.rate, use.since, str(use.closed), str(use.running))
                for of, use in uses.items()
            }
            for queue, uses in self.queues.items()
        }
        return KeptUse(self.half_life_ms, self.time, queues)

    def _settle(self, use: Use) -> None:
        period = self.period()
        begin = period * self.period_ms
        if use.since < begin:
            use.closed, use.running = self._at(use, period), 0
            use.since = begin
        use.running += use.rate * (self.time - use.since)
        use.since = self.time

    def _at(self, use: Use, period: int) -> int:
        # The sum at the start of this period. In each period, it moves towards the sum of constant
        # use at the current rate.
        after = use.since // self.period_ms + 1
        if after > period:
            return use.closed
        total = use.closed + use.running + use.rate * (after * self.period_ms - use.since)
        total = total * _FACTORS[1] >> _BITS
        halved, rest = divmod(period - after, PERIODS)
        end = use.rate * self.horizon_ms
        return end + ((total - end) * _FACTORS[rest] >> (_BITS + halved))


def restored(kept: KeptUse, held: dict[str, Held]) -> PastUse:
    """Return the past use that a snapshot stores; `held` follows from the pods."""
    queues = {
        queue: {
            of: Use(rate, since, int(closed), int(running))
            for of, (rate, since, closed, running) in uses.items()
        }
        for queue, uses in kept.queues.items()
    }
    return PastUse(kept.half_life_ms, kept.time, queues, held)
