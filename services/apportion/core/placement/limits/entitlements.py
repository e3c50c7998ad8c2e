"""Compute what each child queue is entitled to, of what its parent is entitled to (the whole).

1. Each child gets what it deserves, but not more than it asks for.
2. If that is less than its guarantee, no other child gets the difference.
3. The rest is the surplus. Children of higher priority get it first; those of equal priority divide
   it by weight. No child gets more than it asks for, or more than its limit.

If the children together deserve more than the whole, what they deserve is scaled down. Each keeps
its guarantee; the remainder is divided in proportion to what each deserves beyond its guarantee. A
child that deserves an unlimited amount (`AMOUNT_MAX`) deserves the whole. Invariant: the parts
never add up to more than the whole."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from apportion.core.workloads.dialects.amounts import AMOUNT_MAX

UNLIMITED: Final = 1 << 62


class Claim(NamedTuple):
    """What one child claims of an amount; `asked` includes what the child already has."""

    asked: int
    guarantee: int = 0
    deserved: int = 0
    limit: int = UNLIMITED
    weight: int = 1
    priority: int = 0


class Part(NamedTuple):
    """What a child is entitled to.

    `deserved` is what the child deserves, scaled down if the whole is too small. `owned` is the
    part of it that the child asks for."""

    entitled: int = 0
    owned: int = 0
    deserved: int = 0


def divide(whole: Part, claims: Sequence[Claim]) -> list[Part]:
    """Return the entitlement of each claimant. `whole` is the entitlement of their parent.

    What the claimants deserve is scaled to what the parent deserves, even if the parent asks for
    less."""
    total = max(whole.entitled, 0)
    floors, deserved = _scaled(max(total, whole.deserved), claims)
    owned = [min(much, each.asked) for much, each in zip(deserved, claims, strict=True)]
    parts = list(owned)
    left = max(total - sum(map(max, parts, floors)), 0)
    for priority in sorted({each.priority for each in claims}, reverse=True):
        rooms = []
        for at, each in enumerate(claims):
            room = min(each.asked, each.limit) - parts[at]
            if each.priority == priority and each.weight > 0 and room > 0:
                rooms.append((room / each.weight, at, room))
        weights = sum(claims[at].weight for _, at, _ in rooms)
        for _, at, room in sorted(rooms):  # the least room for its weight comes first
            given = min(room, left * claims[at].weight // weights)
            weights -= claims[at].weight
            parts[at] += given
            left -= given
    return [Part(*each) for each in zip(parts, owned, deserved, strict=True)]


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
