"""Scores by load alone: what nodes have in use before the pod is placed."""

from apportion.core.placement.columns import POINTS, rows_of
from apportion.core.placement.scores.look import NO_DEVICE, Look, Points
from apportion_schemas import Shape


class Binpack:
    """The fuller node first, so that whole nodes stay free."""

    policy = "binpack"

    def __init__(self, shape: Shape) -> None:
        self._uses_devices = bool(shape.asks)

    def points(self, look: Look) -> Points:
        """The load of the devices, or of the host where the pod uses none."""
        columns = look.columns
        return rows_of(columns.load if self._uses_devices else columns.host_load, look.rows)

    def device(self, row: int) -> int:
        """Any device: the node's load does not depend on it."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """In percent."""
        return points * 100 / POINTS


class Spread(Binpack):
    """The emptier node first, so that a failure hurts few."""

    policy = "spread"

    def points(self, look: Look) -> Points:
        """What is not in use."""
        points: Points = POINTS - super().points(look)
        return points
