"""What is used of cards and of their MIG instances, as the NVIDIA driver counts it.

Called in the lane of the card alone, which has a `Loads` of its own. Memory and processes come from
NVML for every card. Compute of a process is a rate that the driver tells per card, and of a MIG
instance one between two samples of its GPU performance monitor, which cards have from Hopper on;
without it nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from statistics import fmean
from typing import Any

import pynvml as nvml

from apportion.agent.backend import Load, Running
from apportion.agent.nvidia import mig
from apportion_schemas import MigInstance

_ABSENT = (
    nvml.NVMLError_NotSupported,
    nvml.NVMLError_FunctionNotFound,
    nvml.NVMLError_InvalidArgument,
)
"""What a card, or a driver older than the question, says to something that it cannot tell."""
_Instance = tuple[str, int]
"""A card, and the driver's number of the GPU instance on it."""


class Loads:
    """Looks at loads, and keeps what the next look is compared with."""

    def __init__(self) -> None:
        self._seen_us: dict[str, int] = {}
        self._samples: dict[_Instance, Any] = {}

    def forget(self) -> None:
        """Let the driver have back what it lent; one that is gone takes nothing back."""
        for key in list(self._samples):
            self._drop(key)
        self._seen_us.clear()

    def read(self, device: str, card: Any) -> list[Load]:
        """The loads of a card, by NVML's handle of it. Raises NVMLError."""
        used = int(nvml.nvmlDeviceGetMemoryInfo(card).used)
        running = _running(card)
        instances = list(_instances(card))
        if not instances:
            self._keep(device, ())
            cores = self._cores(device, card)
            processes = tuple(
                Running(pid, memory, None if cores is None else cores.get(pid, 0))
                for (pid, _), memory in running.items()
            )
            return [Load(device, used, _rate(card), None, processes)]
        self._keep(device, [number for number, _, _ in instances])
        loads = [Load(device, used, _rate(card))]
        for number, cut, memory in instances:
            inside = tuple(
                Running(pid, memory, None)
                for (pid, instance), memory in running.items()
                if instance == number
            )
            loads.append(Load(device, memory, self._monitored(device, card, number), cut, inside))
        return loads

    def _cores(self, device: str, card: Any) -> dict[int, int] | None:
        """Percent of the card's compute by process since the last look; None: not told."""
        since_us = self._seen_us.get(device, 0)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(card, since_us)
        except nvml.NVMLError_NotFound:
            return {}  # nobody computed anything
        except _ABSENT:
            return None
        rates: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            rates[int(sample.pid)].append(int(sample.smUtil))
            self._seen_us[device] = max(self._seen_us.get(device, 0), int(sample.timeStamp))
        return {pid: min(round(fmean(each)), 100) for pid, each in rates.items()}

    def _monitored(self, device: str, card: Any, number: int) -> int | None:
        """Percent of an instance's compute since the last look, where the card has a monitor."""
        key = device, number
        with suppress(nvml.NVMLError):
            if not nvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
                return None
            sample = nvml.nvmlGpmSampleAlloc()
            try:
                nvml.nvmlGpmMigSampleGet(card, number, sample)
                return _between(self._samples[key], sample) if key in self._samples else None
            finally:
                self._drop(key)
                self._samples[key] = sample
        return None

    def _keep(self, device: str, numbers: Iterable[int]) -> None:
        """Let go of the samples of instances that are not there any more."""
        there = set(numbers)
        for key in [each for each in self._samples if each[0] == device and each[1] not in there]:
            self._drop(key)

    def _drop(self, key: _Instance) -> None:
        sample = self._samples.pop(key, None)
        if sample is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)


def _running(card: Any) -> dict[tuple[int, int], int | None]:
    """The bytes of each process on a card, by its id and the GPU instance that it is on.

    A process is in one list for each way in which it uses the card: a client of MPS that computes
    and draws is in three. Raises NVMLError.
    """
    found: dict[tuple[int, int], int | None] = {}
    for each in nvml.nvmlDeviceGetComputeRunningProcesses(card):
        found[int(each.pid), each.gpuInstanceId] = each.usedGpuMemory
    for more in (
        nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        with suppress(*_ABSENT):
            for each in more(card):
                key = int(each.pid), each.gpuInstanceId
                memory, before = each.usedGpuMemory, found.get(key)
                found[key] = memory if before is None else max(before, memory or 0)
    return found


def _instances(card: Any) -> Iterator[tuple[int, MigInstance, int]]:
    """Number, cut and used bytes of each MIG instance. Raises NVMLError."""
    with suppress(*_ABSENT):
        if nvml.nvmlDeviceGetMigMode(card)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        used = {}  # bytes, by the number of the GPU instance
        for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(card))):
            with suppress(nvml.NVMLError_NotFound):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
                number = int(nvml.nvmlDeviceGetGpuInstanceId(device))
                used[number] = int(nvml.nvmlDeviceGetMemoryInfo(device).used)
        for made in mig.instances(card, mig.profiles(card)):
            yield made.id, made.cut, used.get(made.id, 0)


def _rate(card: Any) -> int | None:
    """Percent of the time in which the card computed; a card in MIG mode does not tell.

    Raises NVMLError.
    """
    with suppress(*_ABSENT):
        return int(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    return None


def _between(before: Any, after: Any) -> int | None:
    """Percent of multiprocessors that were busy between two samples. Raises NVMLError."""
    asked = nvml.c_nvmlGpmMetricsGet_t(
        version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=1, sample1=before, sample2=after
    )
    asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    answer = nvml.nvmlGpmMetricsGet(asked).metrics[0]
    return round(answer.value) if answer.nvmlReturn == nvml.NVML_SUCCESS else None
