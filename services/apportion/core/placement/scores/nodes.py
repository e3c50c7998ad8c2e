"""Scores by load alone: what nodes have in use, or have left, before the pod is placed."""

from typing import Final

import numpy as np

from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import FIRST_KIND, HOST
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.scores.score_input import NO_DEVICE, Points, ScoreInput
from apportion_schemas import Shape

CPU_MILLI_PER_PERCENT: Final = 160  # 16 CPUs count as much as one device
LEFT_MAX: Final = 20_000  # percent of a device: more than any node has
COMPUTE: Final = np.int64((1 << packed.COMPUTE_BITS) - 1)


class Binpack:
    """The fuller node first, so that whole nodes stay free."""

    policy = "binpack"

    def __init__(self, shape: Shape) -> None:
        self._uses_devices = bool(shape.asks)

    def points(self, given: ScoreInput) -> Points:
        """The load of the devices, or of the host where the pod uses none."""
        columns = given.columns
        return (columns.load if self._uses_devices else columns.host_load).take(given.rows)

    def device(self, row: int) -> int:
        """Any device: the node's load does not depend on it."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """In percent."""
        return points * 100 / POINTS


class Bestfit(Binpack):
    """The node with the least left of CPU and devices together, however large it is."""

    policy = "bestfit"

    def points(self, given: ScoreInput) -> Points:
        """`POINTS` less what is left, in parts of `LEFT_MAX`."""
        columns, rows = given.columns, given.rows
        devices = (columns.kind.take(rows, 0) >= FIRST_KIND).sum(1)
        left = (POINTS - columns.load.take(rows)) // (POINTS // 100) * devices
        host = columns.free[:, HOST].take(rows)
        left += (host >> packed.COMPUTE_AT & COMPUTE) // CPU_MILLI_PER_PERCENT
        points: Points = (POINTS - np.minimum(left, LEFT_MAX) * (POINTS // LEFT_MAX)).astype(
            np.int32
        )
        return points


class Spread(Binpack):
    """The emptier node first, so that a failure hurts few."""

    policy = "spread"

    def points(self, given: ScoreInput) -> Points:
        """What is not in use."""
        points: Points = POINTS - super().points(given)
        return points
