"""Calls the NVIDIA driver with time limits, receives its XIDs (errors), and reads the use of GPUs.

If a GPU fell off the bus (XID 79, 119), a driver call that waits for it blocks its thread for good.
So calls run on daemon threads, one call at a time in each `Lane`, the queue of one GPU. A call that
exceeds the lane's limit is abandoned. A critical XID makes its GPU unhealthy for a while. A
critical XID of a MIG instance blocks only that instance's slices.

Invariants: a hung lane refuses other calls at once, and no call starts after its caller was
refused. XIDs of every GPU that answers are received, even after another GPU was lost."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from statistics import fmean
from typing import Any, Final, TypeVar

import pynvml as nvml

from apportion.agent.backend import Load, NotMade, Running
from apportion.agent.nvidia import mig
from apportion.core.grants.mig import named, overlap
from apportion.runtime.process.clock import Clock
from apportion_schemas import MigInstance

# creating MIG instances, or waking a GPU without persistence mode, takes seconds
CALL_S: Final = 10.0
T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
_Jobs = SimpleQueue[_Job | None]
# Faults of the program, not of the GPU: the list that HAMi and NVIDIA's own plugin ignore, and an
# error of memory that was contained (94), which ends only the programs that used that memory.
IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 94, 109})
# A row of memory was remapped, or the driver requests a recovery. The GPU is then checked at once
# for both. Source of both lists: NVIDIA's catalogue of XIDs.
NOTICE_XIDS = frozenset({63, 154})
XID_MAX = 9_999
QUIET_S = 300.0  # a GPU is healthy again this long after its last critical XID
NO_INSTANCE = 0xFFFF_FFFF  # in an event about the whole GPU
# The answer of a GPU or an older driver that does not have something.
UNKNOWN = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
# The answer of a GPU or an older driver that cannot report something.
_ABSENT = (*UNKNOWN, nvml.NVMLError_InvalidArgument)
_Instance = tuple[str, int]  # a GPU, and the driver's number of the MIG instance on it

_log = logging.getLogger(__name__)


class Hung(Exception):
    """Error: a driver call has not returned within its time limit, which the message names."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"NVML: a call has been hanging for {limit_s:g} s")


class Threads:
    """Threads that make the driver calls of every `Lane`: one thread per call in progress."""

    def __init__(self) -> None:
        self._idle: list[_Jobs] = []
        self._closed = False

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run the function on a thread of its own, and return a future of the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._idle:
            jobs = self._idle.pop()
        else:
            jobs = SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name="nvml", daemon=True).start()
        jobs.put((function, loop, future))
        return future

    def close(self) -> None:
        """End the threads. A thread with a hung call ends when that call returns."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, jobs: _Jobs) -> None:
        while (job := jobs.get()) is not None:
            function, loop, future = job
            result, error = None, None
            try:
                result = function()
            except Exception as raised:  # noqa: BLE001 - it belongs to the caller
                error = raised
            try:
                loop.call_soon_threadsafe(self._deliver, jobs, future, result, error)
            except RuntimeError:  # the loop is closed: the process is exiting
                return

    def _deliver(
        self, jobs: _Jobs, future: asyncio.Future[Any], result: Any, error: Exception | None
    ) -> None:
        if self._closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
            future.exception()  # marks it as retrieved; the caller may have given up


class Lane:
    """Makes the driver calls about one GPU, one after another, each with a time limit."""

    def __init__(
        self, name: str, threads: Threads, limit_s: float, on_change: Callable[[], None]
    ) -> None:
        """Create the lane, which calls `on_change` when a call hangs and when that call returns."""
        self.name = name
        self.hung = False
        self._threads = threads
        self._limit_s = limit_s
        self._on_change = on_change
        self._alone = asyncio.Lock()
        self._current: asyncio.Future[Any] | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function and return its result. Raises Hung if this or an earlier call hangs."""
        async with self._alone:
            if self._current is not None:  # the caller of an earlier call may have been cancelled
                await self._returned(self._current)
            self._current = future = self._threads.begin(function)
            await self._returned(future)
            return future.result()

    async def _returned(self, future: asyncio.Future[Any]) -> None:
        if not future.done() and not self.hung:
            await asyncio.wait({future}, timeout=self._limit_s)
            if not future.done():
                self.hung = True
                future.add_done_callback(self._goes_on)
                _log.error(
                    "%s: %s; no further calls until it returns", self.name, Hung(self._limit_s)
                )
                self._on_change()
        if not future.done():
            raise Hung(self._limit_s)

    def _goes_on(self, future: asyncio.Future[Any]) -> None:  # noqa: ARG002 - abandoned
        self.hung = False
        _log.info("%s: the hanging driver call returned", self.name)
        self._on_change()


def within(limit_s: float, function: Callable[[], None]) -> None:
    """Run the function synchronously with a time limit. Raises Hung if the limit is exceeded."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="nvml", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise Hung(limit_s)
    if errors:
        raise errors[0]


class Xids:
    """Receives XIDs from the driver, and keeps each GPU's critical XID for `quiet_s` seconds."""

    def __init__(
        self,
        clock: Clock,
        *,
        quiet_s: float,
        ignored: frozenset[int],
        hung: Callable[[], Collection[str]],
    ) -> None:
        """Ignore the XIDs in `ignored`. `hung` returns the devices whose driver call hangs."""
        self.ignored = ignored
        self._clock = clock
        self._quiet_s = quiet_s
        self._hung = hung
        self._xids: dict[str, tuple[int, float]] = {}
        self._faults: dict[tuple[str, MigInstance], tuple[int, float]] = {}
        self._events: Any = None
        self._watched: set[str] = set()
        self._stumbled = False

    def listen(self) -> None:
        """Create the event set, to which `watch` adds each GPU. Raises NVMLError."""
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()

    def stop_listening(self) -> None:
        """Free the event set, unless a hung call may be using it."""
        events, self._events = self._events, None
        self._watched.clear()
        if events is not None and not self._hung():
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def watch(self, device: str, handle: Any) -> None:
        """Subscribe to the GPU's critical XIDs, if the GPU can report XIDs. Raises NVMLError."""
        if device in self._watched:
            return
        events = self._events
        with suppress(*UNKNOWN):
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        if events is self._events:  # otherwise the call hung for as long as that set was in use
            self._watched.add(device)

    def keep_watching(self, devices: Collection[str]) -> None:
        """Forget the subscriptions of GPUs that are not in `devices`.

        So a lost GPU is subscribed again when it returns."""
        self._watched.intersection_update(devices)

    def wait(self, wait_s: float) -> Any:
        """Wait up to `wait_s` for a critical XID. Return its event, or False if none came.

        Return True if waiting failed, so that the caller checks all GPUs."""
        if self._events is None:
            time.sleep(wait_s)  # the driver was away at the last check
            return True
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, max(1, int(wait_s * 1_000)))
        except nvml.NVMLError_Timeout:
            self._stumbled = False
            return False
        except nvml.NVMLError:
            # A GPU fell off the bus, or the driver restarts. One lost GPU breaks the set for all:
            # the next check makes another set of the GPUs that answer.
            if self._stumbled:
                time.sleep(wait_s)
            self._stumbled = True
            self.stop_listening()
            return True
        self._stumbled = False
        return event if event.eventType == nvml.nvmlEventTypeXidCriticalError else False

    def note(self, device: str, xid: int) -> None:
        """Record that the GPU had this XID just now."""
        self._xids[device] = (xid, self._clock.monotonic())

    def note_fault(self, device: str, cut: MigInstance, xid: int) -> None:
        """Record the XID of a MIG instance, and log the XID if it differs from the last one."""
        before, _ = self._faults.get((device, cut), (0, 0.0))
        self._faults[device, cut] = (xid, self._clock.monotonic())
        if xid != before:
            _log.error(
                "device %s: XID %d on MIG instance %s, which gets no containers for %g s; other "
                "instances are not affected",
                *(device, xid, named(cut), self._quiet_s),
            )

    def recent(self, device: str) -> str:
        """Return a reason such as "XID 79" if the GPU had an XID in the last `quiet_s` s, or ""."""
        xid, at_s = self._xids.get(device, (0, 0.0))
        if xid and self._clock.monotonic() - at_s < self._quiet_s:
            return f"XID {xid}"
        self._xids.pop(device, None)
        return ""

    def faults(self, device: str) -> Iterator[tuple[MigInstance, int]]:
        """Yield the GPU's MIG instances that had a critical XID in the last `quiet_s` seconds."""
        for (card, cut), (xid, at_s) in list(self._faults.items()):
            if self._clock.monotonic() - at_s >= self._quiet_s:
                del self._faults[card, cut]
            elif card == device:
                yield cut, xid

    def check_place(self, device: str, wanted: MigInstance) -> None:
        """Raise NotMade if an instance that overlaps `wanted` had a critical XID recently."""
        for cut, xid in self.faults(device):
            if overlap(cut, wanted):
                raise NotMade(
                    f"MIG instance {named(cut)} had XID {xid}; its slices are usable again after "
                    f"{self._quiet_s:g} s without another XID"
                )


class Loads:
    """Reads the use of GPUs. Keeps the last samples, because use is computed from two samples."""

    def __init__(self) -> None:
        self._seen_us: dict[str, int] = {}
        self._samples: dict[_Instance, Any] = {}

    def forget(self) -> None:
        """Drop the samples, because the driver that made them may have restarted."""
        for key in list(self._samples):
            self._drop(key)
        self._seen_us.clear()

    def read(self, device: str, card: Any) -> list[Load]:
        """Return the loads of a GPU (NVML handle `card`) and its instances. Raises NVMLError."""
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
        """Return each process's percent of compute since the last reading; None if unsupported."""
        since_us = self._seen_us.get(device, 0)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(card, since_us)
        except nvml.NVMLError_NotFound:
            return {}  # no process computed anything
        except _ABSENT:
            return None
        rates: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            rates[int(sample.pid)].append(int(sample.smUtil))
            self._seen_us[device] = max(self._seen_us.get(device, 0), int(sample.timeStamp))
        return {pid: min(round(fmean(each)), 100) for pid, each in rates.items()}

    def _monitored(self, device: str, card: Any, number: int) -> int | None:
        """Return a MIG instance's compute use since the last reading, in percent, or None."""
        key = device, number
        with suppress(nvml.NVMLError):
            if not nvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
                return None
            sample = nvml.nvmlGpmSampleAlloc()
            try:
                nvml.nvmlGpmMigSampleGet(card, number, sample)
                if key not in self._samples:
                    return None
                asked = nvml.c_nvmlGpmMetricsGet_t(
                    version=nvml.NVML_GPM_METRICS_GET_VERSION,
                    numMetrics=1,
                    sample1=self._samples[key],
                    sample2=sample,
                )
                asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
                answer = nvml.nvmlGpmMetricsGet(asked).metrics[0]
                return round(answer.value) if answer.nvmlReturn == nvml.NVML_SUCCESS else None
            finally:
                self._drop(key)
                self._samples[key] = sample
        return None

    def _keep(self, device: str, numbers: Iterable[int]) -> None:
        # Free the samples of instances that no longer exist.
        there = set(numbers)
        for key in [each for each in self._samples if each[0] == device and each[1] not in there]:
            self._drop(key)

    def _drop(self, key: _Instance) -> None:
        sample = self._samples.pop(key, None)
        if sample is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)


def _running(card: Any) -> dict[tuple[int, int], int | None]:
    # A process is in a list for each use: a client of MPS that computes and draws is in three.
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
    with suppress(*_ABSENT):
        # A GPU in MIG mode does not report it.
        return int(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    return None
