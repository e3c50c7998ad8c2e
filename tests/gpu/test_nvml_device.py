"""Tests that compare our NVML backend with nvidia-smi, on a machine with a GPU."""

import csv
import io
import shutil
import subprocess

import pytest

from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.runtime.process.clock import SystemClock

SMI = shutil.which("nvidia-smi") or ""
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not SMI, reason="no NVIDIA driver here")]


@pytest.fixture
def rows() -> list[list[str]]:
    """Return the id, memory in MiB and driver version of each GPU, according to nvidia-smi."""
    query = ["--query-gpu=uuid,memory.total,driver_version", "--format=csv,noheader,nounits"]
    answer = subprocess.run([SMI, *query], capture_output=True, text=True, check=True)
    return list(csv.reader(io.StringIO(answer.stdout), skipinitialspace=True))


async def test_the_backend_agrees_with_nvidia_smi(rows: list[list[str]]) -> None:
    """The NVML backend reports the same GPU ids, memory and driver version as nvidia-smi.

    It also reports all GPUs as healthy."""
    backend = NvmlBackend(SystemClock())
    try:
        devices = await backend.inventory()
    finally:
        await backend.close()
    assert [(d.id, d.memory_mib, backend.driver) for d in devices] == [
        (uuid, int(memory_mib), driver) for uuid, memory_mib, driver in rows
    ]
    assert all(device.healthy for device in devices)
