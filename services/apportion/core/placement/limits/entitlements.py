"""Divide what a parent queue is entitled to (the whole) among its child queues.

1. Each child gets what it deserves, but not more than it asks for.
2. If that is less than its guarantee, no other child gets the difference.
3. The rest is the surplus. Children of higher priority get it first; those of equal priority divide
   it by weight. No child gets more than it asks for, or more than its limit.

With past use, the weight of a child is w + k x (w - u), but not below 0 (KAI's time-based fair
share). Here w is the child's fraction of the weights of all children that ask for more, and u is
its past use as a fraction of the whole over the same time. When a child has all that it asks for,
the weights of the others are computed again.

If the children together deserve more than the whole, what they deserve is scaled down. Each keeps
its guarantee; the remainder is divided in proportion to what each deserves beyond its guarantee. A
child that deserves an unlimited amount (`AMOUNT_MAX`) deserves the whole. Invariant: the parts
never add up to more than the whole."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from apportion.core.workloads.dialects.amounts import AMOUNT_MAX

UNLIMITED: Final = 1 << 62


Room = tuple[float, int, int]  # for its weight, the number of the claim, and how much it may get


class Claim(NamedTuple):
    """What one child claims of an amount; `asked` includes what the child already has."""

    asked: int
    guarantee: int = 0
    deserved: int = 0
    limit: int = UNLIMITED
    weight: int = 1
    priority: int = 0
    past: int = 0  # past use, in units of the amount times milliseconds


class Memory(NamedTuple):
    """How past use counts: k in thousandths, and the sum (ms) of a constant use of 1."""

    weight_milli: int
    horizon_ms: int


class Part(NamedTuple):
    """What a child is entitled to.

    `deserved` is what the child deserves, scaled down if the whole is too small. `owned` is the
    part of it that the child asks for. `plain` is the entitlement without past use, or None if past
    use does not count."""

    entitled: int = 0
    owned: int = 0
    deserved: int = 0
    plain: int | None = None

    @property
    def least(self) -> int:
        """Return the smaller entitlement of those with and without past use."""
        return self.entitled if self.plain is None else min(self.entitled, self.plain)

    @property
    def most(self) -> int:
        """Return the larger entitlement of those with and without past use."""
        return self.entitled if self.plain is None else max(self.entitled, self.plain)


def divide(whole: Part, claims: Sequence[Claim], memory: Memory | None = None) -> list[Part]:
    """Return the entitlement of each claimant. `whole` is the entitlement of their parent.

    What the claimants deserve is scaled to what the parent deserves, even if the parent asks for
    less. With `memory`, past use lowers a claimant's part of the surplus."""
    total = max(whole.entitled, 0)
    floors, deserved = _scaled(max(total, whole.deserved), claims)
    owned = [min(much, each.asked) for much, each in zip(deserved, claims, strict=True)]
    parts = list(owned)
    left = max(total - sum(map(max, parts, floors)), 0)
    weights = [each.weight for each in claims]
    for priority in sorted({each.priority for each in claims}, reverse=True):
        rooms = []
        for at, each in enumerate(claims):
            room = min(each.asked, each.limit) - parts[at]
            if each.priority == priority and each.weight > 0 and room > 0:
                rooms.append((room / each.weight, at, room))
        while rooms and memory is not None:
            # Those that get all they ask for do not count for the weights of the others.
            rooms = _remembering(memory, total, claims, rooms, weights)
            trial = list(parts)
            _by_weight(left, rooms, weights, trial)
            full = [one for one in rooms if trial[one[1]] == parts[one[1]] + one[2]]
            if not full or len(full) == len(rooms):
                break
            for one in full:
                parts[one[1]] += one[2]
                left -= one[2]
                rooms.remove(one)
        left = _by_weight(left, rooms, weights, parts)
    return [Part(*each) for each in zip(parts, owned, deserved, strict=True)]


def _by_weight(left: int, rooms: Sequence[Room], weights: Sequence[int], parts: list[int]) -> int:
    # Divide what is left by weight. Return the rest, if there is more than all ask for.
    total = sum(weights[at] for _, at, _ in rooms)
    for _, at, room in sorted(rooms):  # the least room for its weight comes first
        given = min(room, left * weights[at] // total)
        total -= weights[at]
        parts[at] += given
        left -= given
    return left


def _remembering(
    memory: Memory, total: int, claims: Sequence[Claim], rooms: Sequence[Room], weights: list[int]
) -> list[Room]:
    # Set the weights of these claims to w + k x (w - use), where w and the use are parts of the
    # whole. The use of all is at most the whole, so there is a weight above 0. A claim without one
    # gets what the others leave.
    whole = max(total * memory.horizon_ms, sum(each.past for each in claims), 1)
    of_all, k = sum(claims[at].weight for _, at, _ in rooms), memory.weight_milli
    for _, at, _ in rooms:
        plain = claims[at].weight
        lower = k * claims[at].past * of_all
        weights[at] = max(plain * (1000 + k) * whole - lower, plain)
    return [(room / weights[at], at, room) for _, at, room in rooms]


def _scaled(total: int, claims: Sequence[Claim]) -> tuple[list[int], list[int]]:
    # What each is guaranteed and deserves, scaled down to the total.
    floors = [min(each.guarantee, each.limit) for each in claims]
    if sum(floors) > total:
        floors = [floor * total // sum(floors) for floor in floors]
        return floors, floors
    deserved = [
        max(min(total if each.deserved >= AMOUNT_MAX else each.deserved, each.limit), floor)
        for each, floor in zip(claims, floors, strict=True)
    ]
    spare, beyond = total - sum(floors), sum(deserved) - sum(floors)
    if beyond > spare:
        deserved = [
            floor + (much - floor) * spare // beyond
            for much, floor in zip(deserved, floors, strict=True)
        ]
    return floors, deserved
