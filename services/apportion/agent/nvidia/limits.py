"""Limits of memory that the driver holds a cgroup to: a part of `nvml` alone.

Drivers have them from R615 on, for root on Linux, and for whole cards alone. NVML opens the folder
of the cgroup, so its path is one of this process's own files. A limit ends with its cgroup.
Invariant: the driver is asked what it holds before it is set, so nothing need be remembered here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pynvml as nvml

_ABSENT: Final = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
"""What a card, or a driver older than R615, says."""
_NO_PROMISE: Final = 0
"""The soft limit is what a cgroup keeps when an MPS server evicts; left as it is without limits.

The driver adds it to the cgroups above (`dmem.min`), and takes it off there only where it is set to
0 before the cgroup is removed. No runtime does that, so each container would leave its share
reserved.
Source: NVIDIA, "MPS v3 Memory Partitioning", Ancestor reservation propagation.
"""


def hold(card: Any, cgroup: Path, memory: int) -> bool:
    """Let the processes of a cgroup have so many bytes of the card; see `DeviceBackend`.

    Raises NVMLError.
    """
    folder = os.fsencode(cgroup)
    try:
        if _held_to(card, folder) != memory:
            wanted = nvml.c_nvmlSetMemoryLimits_v1_t(folder, _NO_PROMISE, memory)
            nvml.nvmlDeviceSetMemoryLimits_v1(card, wanted)
    except _ABSENT:
        return False
    return True


def _held_to(card: Any, folder: bytes) -> int:
    """Bytes; of a cgroup without a limit the driver tells the largest, or nothing.

    Raises NVMLError.
    """
    found = nvml.c_nvmlGetMemoryLimits_v1_t(folder)
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(card, found)
    except (nvml.NVMLError_NotFound, *_ABSENT):
        return int(nvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
    return int(found.hardLimit)
