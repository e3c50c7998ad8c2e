"""For each row the device that gave it its points, kept until the row is looked at again."""

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.row_log import Rows
from apportion.core.placement.index.score_input import NO_DEVICE


class NotedDevices:
    """Positions of devices by row."""

    def __init__(self) -> None:
        self._devices = np.zeros(0, np.int8)

    def note(self, columns: Columns, rows: Rows, devices: NDArray[np.intp]) -> None:
        """These rows have these devices."""
        count = len(columns.names)
        if len(self._devices) != count:
            self._devices = np.full(count, NO_DEVICE, np.int8)
        self._devices[rows] = devices

    def of(self, row: int) -> int:
        """The device noted for the row, or `NO_DEVICE`."""
        return int(self._devices[row]) if row < len(self._devices) else NO_DEVICE
