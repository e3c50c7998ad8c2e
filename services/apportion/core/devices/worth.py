"""Measure what pods take of devices, in thousandths of a device.

Invariant: a share counts as the part of its device that no other share can use."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from apportion_schemas import Device, Shape, Share

DEVICE: Final = 1000
T = TypeVar("T")


def worth_of(device: Device, memory_mib: int, cores: int) -> int:
    """Return the part of a device that a share takes, in thousandths: of its memory, cores or
    slots, whichever is the most."""
    return max(
        -(-memory_mib * DEVICE // max(device.memory_mib, 1)),
        -(-cores * DEVICE // max(device.cores, 1)),
        -(-DEVICE // max(device.slots, 1)),
    )


def most_at_once(
    shape: Shape, shares: Iterable[Share], of_share: Callable[[Share], Iterable[tuple[T, int]]]
) -> Counter[T]:
    """Return the peak usage of a pod's shares; init containers run before the others."""
    taken: Counter[T] = Counter()  # not `Counter[T]()`, which takes half as long again
    before: dict[str, Counter[T]] = {ask.container: Counter() for ask in shape.asks if ask.init}
    for share in shares:
        part = before.get(share.container, taken)
        for amount, much in of_share(share):
            part[amount] += much
    for each in before.values():
        taken |= each
    return taken
