"""Node scores: `(columns, rows, uses_devices) → points`, before the pod is placed."""

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.columns import POINTS, Columns, Rows, rows_of

Points = NDArray[np.int32]


def binpack(columns: Columns, rows: Rows | None, *, uses_devices: bool) -> Points:
    """The fuller node first, so that whole nodes stay free."""
    return rows_of(columns.load if uses_devices else columns.host_load, rows)


def spread(columns: Columns, rows: Rows | None, *, uses_devices: bool) -> Points:
    """The emptier node first, so that a failure hurts few."""
    points: Points = POINTS - binpack(columns, rows, uses_devices=uses_devices)
    return points
