"""Score nodes by their load before the pod is placed."""

from collections.abc import Callable
from typing import Final

import numpy as np

from apportion.core.placement.index import packed, row_loops
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST, LEFT_MAX
from apportion.core.placement.index.packed import POINTS, Int32s, Int64
from apportion.core.placement.index.score_input import NodeScore, ScoreInput
from apportion_schemas import NodeWeights, Shape


class Binpack(NodeScore):
    """The policy `binpack`, which prefers full nodes."""

    __slots__ = ("_uses_devices",)
    policy = "binpack"
    base, step = 0, 1

    def __init__(self, shape: Shape) -> None:
        self._uses_devices = bool(shape.asks)

    def rate(self, seen: ScoreInput) -> None:
        """Score each node by the load of its devices, or of its host for pods without devices."""
        _by_load(seen, self._uses_devices, self.base, self.step)


class Spread(Binpack):
    """The policy `spread`, which prefers empty nodes, so that a failure affects few pods."""

    __slots__ = ()
    policy = "spread"
    base, step = POINTS, -1


class Bestfit(Binpack):
    """The policy `bestfit`, which prefers nodes with the least free CPU and devices in total."""

    __slots__ = ()
    policy = "bestfit"
    base, step = POINTS, -(POINTS // LEFT_MAX)

    def rate(self, seen: ScoreInput) -> None:
        """Score each node: the less free CPU and the fewer free devices, the more points."""
        _by_left(seen, self.base, self.step)


# Functions, because only these are compiled to C: in a method each column would become an object.


def _by_load(seen: ScoreInput, uses_devices: Int64, base: Int64, step: Int64) -> None:
    load: Int32s = seen.columns.flat_load
    if not uses_devices:
        load = seen.columns.flat_host_load
    row_loops.give(seen.rows, seen.count, load, base, step, seen.given)


def _by_left(seen: ScoreInput, base: Int64, step: Int64) -> None:
    left: Int32s = seen.columns.flat_left
    row_loops.give(seen.rows, seen.count, left, base, step, seen.given)


LOADS: Final[dict[str, Callable[[Shape], NodeScore]]] = {
    "bestfit": Bestfit,
    "binpack": Binpack,
    "spread": Spread,
}  # by the name of the policy


# The load of a node with a weight for each resource: Volcano's `binpack` and `deviceshare` scores.
# Only requested resources count: CPU and memory with the pod on the node, devices as they are
# before it. The weighted mean is 0 to `packed.POINTS`.

WEIGHABLE: Final = ("binpack", "spread")


class Weighed(NodeScore):
    """The policy `binpack` or `spread`, with a weight for each resource."""

    def __init__(self, policy: str, shape: Shape, weights: NodeWeights) -> None:
        self.policy = policy
        self._cpu_milli = shape.node.cpu_milli
        self._memory_mib = shape.node.memory_mib
        self._cpu = weights.cpu if self._cpu_milli else 0
        self._memory = weights.memory if self._memory_mib else 0
        self._devices = weights.devices if shape.asks else 0

    def rate(self, seen: ScoreInput) -> None:
        """Score each node by its weighted load; for `spread`, the lower the better."""
        given, rows = np.asarray(seen.given)[: seen.count], np.asarray(seen.rows)[: seen.count]
        load, columns = np.zeros(len(rows), np.int64), seen.columns
        total, host = columns.host_total.take(rows, 0), columns.free[:, HOST].take(rows)
        for weight, at, bits, needed, column in (
            (self._memory, 0, packed.MEMORY_BITS, self._memory_mib, 0),
            (self._cpu, packed.COMPUTE_AT, packed.COMPUTE_BITS, self._cpu_milli, 1),
        ):
            if weight:
                free, most = (host >> at) & ((1 << bits) - 1), total[:, column]
                used = np.clip(most - free + needed, 0, most)
                load += weight * (used * POINTS // np.maximum(most, 1))
        if self._devices:
            load += self._devices * columns.load.take(rows).astype(np.int64)
        load //= max(self._cpu + self._memory + self._devices, 1)
        points = load if self.policy == "binpack" else POINTS - load
        given[given != REFUSED] = points[given != REFUSED]
