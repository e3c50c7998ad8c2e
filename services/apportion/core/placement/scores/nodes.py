"""Scores by load alone: what nodes have in use, or have left, before the pod is placed.

Each is a column of the index, in which it stands once for all classes.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from apportion.core.placement.index import packed, row_loops
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST, LEFT_MAX
from apportion.core.placement.index.packed import POINTS, Int32s, Int64
from apportion.core.placement.index.score_input import NO_ASK, NO_DEVICE, NodeScore, ScoreInput
from apportion_schemas import NodeWeights, Shape


class Binpack:
    """The fuller node first, so that whole nodes stay free."""

    policy = "binpack"
    ask_at = NO_ASK

    def __init__(self, shape: Shape) -> None:
        self._uses_devices = bool(shape.asks)

    def rate(self, seen: ScoreInput) -> None:
        """The load of the devices, or of the host where the pod uses none."""
        _by_load(seen, self._uses_devices, 0, 1)

    def device(self, row: int) -> int:
        """Any device: the node's load does not depend on it."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """Points as the score that people read, in percent."""
        return points * 100 / POINTS


class Spread(Binpack):
    """The emptier node first, so that a failure hurts few."""

    policy = "spread"

    def rate(self, seen: ScoreInput) -> None:
        """What is not in use."""
        _by_load(seen, self._uses_devices, POINTS, -1)


class Bestfit(Binpack):
    """The node with the least left of CPU and devices together, however large it is."""

    policy = "bestfit"

    def rate(self, seen: ScoreInput) -> None:
        """`POINTS` less what is left, in parts of `LEFT_MAX`."""
        _by_left(seen)


def _by_load(seen: ScoreInput, uses_devices: Int64, base: Int64, step: Int64) -> None:
    load: Int32s = seen.columns.flat_load
    if not uses_devices:
        load = seen.columns.flat_host_load
    row_loops.give(seen.rows, seen.count, load, base, step, seen.given)


def _by_left(seen: ScoreInput) -> None:
    left: Int32s = seen.columns.flat_left
    row_loops.give(seen.rows, seen.count, left, POINTS, -(POINTS // LEFT_MAX), seen.given)


LOADS: Final[dict[str, Callable[[Shape], NodeScore]]] = {
    "bestfit": Bestfit,
    "binpack": Binpack,
    "spread": Spread,
}
"""By the name of the policy."""


# The load of a node with a weight for each resource: Volcano's `binpack` and `deviceshare`
# scores.
#
# Only what the pod asks for counts. CPU and memory count with the pod on the node, devices as
# they are before it; the mean by weight is 0 to `packed.POINTS` like every other score.

WEIGHABLE: Final = ("binpack", "spread")


class Weighed:
    """`binpack` or `spread` by weighed load."""

    ask_at = NO_ASK

    def __init__(self, policy: str, shape: Shape, weights: NodeWeights) -> None:
        self.policy = policy
        self._cpu_milli = shape.node.cpu_milli
        self._memory_mib = shape.node.memory_mib
        self._cpu = weights.cpu if self._cpu_milli else 0
        self._memory = weights.memory if self._memory_mib else 0
        self._devices = weights.devices if shape.asks else 0

    def rate(self, seen: ScoreInput) -> None:
        """The weighed load, or what it leaves; nothing that counts is no load."""
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

    def device(self, row: int) -> int:
        """Any device: the node's load does not depend on it."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """Points as the score that people read, in percent."""
        return points * 100 / POINTS
