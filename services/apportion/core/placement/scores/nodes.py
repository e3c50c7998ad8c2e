"""Scores by load alone: what nodes have in use, or have left, before the pod is placed.

Each is a column of the index, in which it stands once for all classes.
"""

from collections.abc import Callable
from typing import Final

from apportion.core.placement.index import row_loops
from apportion.core.placement.index.columns import LEFT_MAX
from apportion.core.placement.index.packed import POINTS, Int32s, Int64
from apportion.core.placement.index.score_input import NO_ASK, NO_DEVICE, NodeScore, ScoreInput
from apportion_schemas import Shape


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
