"""Write a process into a container's usage region, as HAMi-core does."""

import struct
from pathlib import Path

from apportion.agent.shares.regions import SharedFile

PROCESSES, COUNT = 1856, 2_008_896
"""Offsets of HAMi-core 1.2."""


def run_process(
    path: Path, *, inner: int = 7, host: int = 0, mib: int = 0, percent: int = 0
) -> None:
    """Add a process that uses the first device to a container's usage region."""
    with SharedFile(path) as file:
        file.write(PROCESSES, struct.pack("<ii", inner, host))
        file.write(PROCESSES + 8, struct.pack("<QQQ", mib << 18, 0, 3 * mib << 18))
        file.write(PROCESSES + 8 + 32, struct.pack("<Q", mib << 20))
        file.write(PROCESSES + 1160 + 16, struct.pack("<Q", percent))
        file.write(COUNT, struct.pack("<i", 1))
