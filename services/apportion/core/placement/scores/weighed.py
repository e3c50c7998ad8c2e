"""The load of a node with a weight for each resource: Volcano's `binpack` and `deviceshare` scores.

Only what the pod asks for counts. CPU and memory count with the pod on the node, devices as they
are before it; the mean by weight is 0 to `packed.POINTS` like every other score.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index import packed
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.index.score_input import NO_ASK, NO_DEVICE, ScoreInput
from apportion_schemas import NodeWeights, Shape

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
                free = (host >> at) & ((1 << bits) - 1)
                load += weight * _part(total[:, column] - free + needed, total[:, column])
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


def _part(used: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.int64]:
    part: NDArray[np.int64] = np.clip(used, 0, total) * POINTS // np.maximum(total, 1)
    return part
