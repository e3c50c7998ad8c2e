"""Build prices of pod shapes by hand, and compute scores with slow reference formulas.

The formulas share no code with the price tables that they check."""

from dataclasses import dataclass
from math import floor, isqrt
from typing import Any

from apportion_schemas import Ask, PricedShape, PricesLearnt
from tests.support.pods import ask, cards

MILLION = 1_000_000
CPU_STEPS = (0, 2, 8, 32, 128, 512)


def piece(percent: int, **fields: Any) -> Ask:
    """Return a request for this percentage of one device's memory and compute."""
    return ask(None, memory_percent=percent, cores=percent, container="any", **fields)


def priced(wanted: Ask | None, value: int, cpu_milli: int = 1000, **fields: Any) -> PricedShape:
    """Return a shape with this request and this value in millionths of a device."""
    taken = 40_000 if wanted is None else wanted.count * wanted.cores * MILLION // 100
    fields.setdefault("memory_mib", 1024)
    fields.setdefault("pods", 10)
    fields.setdefault("size", taken)
    return PricedShape(ask=wanted, value=value, cpu_milli=cpu_milli, **fields)


def whole(count: int = 1) -> Ask:
    return cards(count, container="any")


def learnt(*shapes: PricedShape) -> PricesLearnt:
    """Return the event that announces these priced shapes."""
    return PricesLearnt(pods=sum(shape.pods for shape in shapes), shapes=shapes)


@dataclass(frozen=True)
class Left:
    """The free resources of a node."""

    cpu_milli: int
    memory_mib: int
    devices: tuple[int, ...]

    def without(self, cpu_milli: int, memory_mib: int, *devices: int) -> "Left":
        """Return the free resources that remain after a pod takes this CPU and memory.

        `devices` is the new free percentage of each device."""
        return Left(self.cpu_milli - cpu_milli, self.memory_mib - memory_mib, devices)


IDLE = 1000


def size_of(shape: PricedShape) -> int:
    """Return the percentage of each device that the shape requests, or 0 if it requests none."""
    return shape.ask.cores if shape.ask else 0


def share_value(shapes: tuple[PricedShape, ...], left: int, cpu_price: int) -> int:
    """Return the highest total value of shares that fit in `left` percent of a device."""
    best = 0
    for shape in shapes:
        if 0 < size_of(shape) <= min(left, 99):
            net = shape.value - cpu_price * shape.cpu_milli
            if net > 0:
                best = max(best, net + share_value(shapes, left - size_of(shape), cpu_price))
    return best


def idle_value(shapes: tuple[PricedShape, ...], count: int, cpu_price: int) -> int:
    """Return the highest total value of pods on `count` idle devices.

    Every way to use the devices is tried."""
    if count == 0:
        return 0
    best = idle_value(shapes, count - 1, cpu_price) + share_value(shapes, 100, cpu_price)
    for shape in shapes:
        if shape.ask and size_of(shape) == 100 and shape.ask.count <= count:
            net = shape.value - cpu_price * shape.cpu_milli
            best = max(best, net + idle_value(shapes, count - shape.ask.count, cpu_price))
    return best


def node_value(shapes: tuple[PricedShape, ...], node: Left) -> int:
    """Return the value of the node's free CPU and devices, at the CPU price that makes this
    value lowest."""
    alone = [s.value // s.cpu_milli for s in shapes if s.ask is None]
    values = []
    for step in CPU_STEPS:
        price = max(alone, default=0) + step
        value = price * node.cpu_milli + idle_value(shapes, node.devices.count(IDLE), price)
        value += sum(share_value(shapes, left, price) for left in node.devices if left != IDLE)
        values.append(value)
    return min(values)


def node_variety(shapes: tuple[PricedShape, ...], node: Left) -> int:
    """Return the node's variety, K: a weighted sum of how many pods of each shape fit.

    A shape's weight is half its frequency times the square root of its size."""
    total, weighed = sum(shape.pods for shape in shapes), 0
    for shape in shapes:
        room = min(
            floor(node.cpu_milli / max(shape.cpu_milli, 1)),
            floor(node.memory_mib / max(shape.memory_mib, 1)),
        )
        if shape.ask and size_of(shape) == 100:
            room = min(room, node.devices.count(IDLE) // shape.ask.count)
        elif shape.ask:
            slots = sum(min(left, 100) // size_of(shape) for left in node.devices)
            room = min(room, slots)
        weighed += room * (shape.pods * isqrt(shape.size * 1000) // (2 * total))
    return weighed


def node_fragments(shapes: tuple[PricedShape, ...], node: Left) -> int:
    """Return how much free device capacity of the node a random pod could not use.

    The result is in percent of a device, added up over the pods of all shapes."""
    expected = 0
    for shape in shapes:
        lefts = [min(left, 100) for left in node.devices]
        usable = [left for left in lefts if size_of(shape) and left >= size_of(shape)]
        fits = shape.ask and node.cpu_milli >= shape.cpu_milli and len(usable) >= shape.ask.count
        expected += shape.pods * (sum(lefts) - (sum(usable) if fits else 0))
    return expected
