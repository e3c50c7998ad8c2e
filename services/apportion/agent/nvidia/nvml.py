"""The GPUs of this machine, read from the driver through NVML.

A GPU is unhealthy when the driver has lost it, requests its reset, or has reported a critical XID.
The GPU is healthy again once it answers and has had no XID for a while. A restarted driver is
opened again. Invariants: calls about a GPU are made one at a time, and a hung call affects no other
GPU. A lost GPU stays in the inventory, unhealthy, until this process ends."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_void_p, cast
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pynvml as nvml

from apportion.agent.backend import DevicesUnavailable, Kept, Load, NotMade
from apportion.agent.nvidia import mig
from apportion.agent.nvidia.driver import (
    CALL_S,
    IGNORED_XIDS,
    NO_INSTANCE,
    NOTICE_XIDS,
    QUIET_S,
    UNKNOWN,
    Hung,
    Lane,
    Loads,
    Threads,
    Xids,
    within,
)
from apportion.agent.nvidia.mig import OurInstances
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.simulating import SLOTS
from apportion.core.grants import MadeInstance
from apportion.runtime.process.clock import Clock
from apportion_schemas import Device, MigInstance, MigSize

PROBE_S = 10.0
_WAIT_S = 1.0  # The longest wait for an XID at a time; a GPU check may have to wait as long.
_SLOW_S = 0.2  # after this long without an answer, the next GPU is read concurrently
_MIG_SLOTS = 7
_MIB = 1 << 20
_FAMILY = "nvidia"
# The soft limit is what a cgroup keeps when an MPS server evicts. It is left as it is without
# limits, because the driver adds it to the cgroups above (`dmem.min`) and only subtracts it if it
# is set to 0 before the cgroup is removed. No runtime does that, so each container would leave its
# share reserved. Source: NVIDIA, "MPS v3 Memory Partitioning", Ancestor reservation propagation.
_NO_PROMISE = 0
_ACTIONS = {
    nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the device",
    nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "stop the processes on the device and its peers",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "let its processes end, then reset the device",
}

T = TypeVar("T")


class _Card(NamedTuple):
    """A GPU that answers: its NVML handle, and its PCI address in the form that sysfs uses."""

    handle: Any
    bus_id: str


class _Looked(NamedTuple):
    """The result of one check of a GPU: its state, its fault if any, and the GPUs linked to it."""

    card: _Card
    device: Device
    trouble: str
    remotes: tuple[str, ...]


class NvmlBackend:
    """A `DeviceBackend` that uses the NVIDIA driver."""

    simulated = False

    def __init__(
        self,
        clock: Clock,
        *,
        quiet_s: float = QUIET_S,
        probe_s: float = PROBE_S,
        call_s: float = CALL_S,
        ours: OurInstances | None = None,
        ignored: frozenset[int] = IGNORED_XIDS | NOTICE_XIDS,
    ) -> None:
        """Open the driver. A call longer than `call_s` makes its GPU unhealthy.

        `ours` records the MIG instances of this agent; `ignored` XIDs leave a GPU healthy. Raises
        DevicesUnavailable if there is no driver or it does not answer."""
        self._clock = clock
        self._probe_s = probe_s
        self._call_s = call_s
        self._ours = OurInstances() if ours is None else ours
        self._known: dict[str, Device] = {}
        self._cards: dict[str, tuple[Lane, _Card]] = {}
        self._xids = Xids(clock, quiet_s=quiet_s, ignored=ignored, hung=self.hung)
        self._seen: tuple[Device, ...] = ()
        self._loads: dict[str, Loads] = {}
        self._closed = False
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self.driver = ""
        self._threads = Threads()
        self._driver = self._lane("the driver")
        self._listening = self._lane("the driver's events")
        self._naming = self._lane("the device of an event")
        self._lanes: dict[int, Lane] = {}
        try:
            within(call_s, self._open)
        except (nvml.NVMLError, Hung) as error:
            if not isinstance(error, Hung):
                self._shut()
            raise DevicesUnavailable(
                f"the NVIDIA driver does not answer ({error}); install it (nvidia-smi must work "
                "here), or simulate devices: `apportion agent --simulate 8xH100-80GB`, or "
                "`apportion up` without --gpus local"
            ) from None

    async def inventory(self) -> tuple[Device, ...]:
        """Return every device with its health; see `DeviceBackend.inventory`."""
        self._seen = await self._read()
        return self._seen

    async def changed(self) -> None:
        """Wait for an XID, a hung driver call, or a change in the devices; see `DeviceBackend`."""
        while True:
            probe_at = self._clock.monotonic() + self._probe_s
            while (left_s := probe_at - self._clock.monotonic()) > 0:
                if await self._heard(min(left_s, _WAIT_S)):
                    return
            if await self._read() != self._seen:
                return

    def hung(self) -> tuple[str, ...]:
        """Return the names of devices whose driver call has not returned, for display."""
        lanes = (self._driver, self._listening, self._naming, *self._lanes.values())
        return tuple(lane.name for lane in lanes if lane.hung)

    async def make_instance(
        self,
        device: str,
        wanted: MigInstance,
        needed: Collection[MigInstance],
        *,
        least_mib: int = 0,
    ) -> MadeInstance:
        """Make or reuse a MIG instance; see `DeviceBackend.make_instance`."""
        self._xids.check_place(device, wanted)
        return await self._of(
            device,
            lambda card: mig.ensure(
                mig.Cut(device, card, self._ours), wanted, needed, least_mib=least_mib
            ),
        )

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> Kept:
        """Destroy this agent's MIG instances that are not needed or in use; see `DeviceBackend`."""
        return await self._of(
            device, lambda card: mig.keep(mig.Cut(device, card, self._ours), needed)
        )

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """Allow one process at a time, or any number; see `DeviceBackend.set_exclusive`."""
        mode = (
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
        )
        await self._of(device, lambda card: nvml.nvmlDeviceSetComputeMode(card, mode))

    async def hold_memory(self, device: str, cgroup: Path, memory: int) -> bool:
        """Limit a cgroup's memory on the device; see `DeviceBackend.hold_memory`."""
        return await self._of(device, lambda card: _hold_memory(card, cgroup, memory))

    async def loads(self) -> tuple[Load, ...]:
        """Return the current use of every device that answers, and of its MIG instances."""
        calls = []
        for device, (lane, card) in self._cards.items():
            of = self._loads.setdefault(device, Loads())
            calls.append(await self._begun(lane, partial(of.read, device, card.handle)))
        found: list[Load] = []
        for call in calls:
            with suppress(nvml.NVMLError, Hung):
                found += await call
        return tuple(found)

    async def close(self) -> None:
        """Release the driver, after all calls into it except hung ones have returned."""
        self._closed = True
        await self._forget()
        with suppress(Hung):
            if not self.hung():
                async with self._turn:
                    await self._driver.call(self._shut)
        self._threads.close()

    def _lane(self, name: str) -> Lane:
        return Lane(name, self._threads, self._call_s, self._woken.set)

    async def _call(self, lane: Lane, function: Callable[[], T]) -> T:
        # Never returns, so that no call starts after `close`.
        if self._closed:
            await asyncio.get_running_loop().create_future()
        return await lane.call(function)

    async def _begun(self, lane: Lane, function: Callable[[], T]) -> asyncio.Task[T]:
        call = asyncio.ensure_future(self._call(lane, function))
        # A slow GPU does not delay the others.
        await asyncio.wait({call}, timeout=_SLOW_S)
        return call

    async def _of(self, device: str, function: Callable[[Any], T]) -> T:
        try:
            if device not in self._cards:
                await self._read()
            if device not in self._cards:
                raise NotMade(f"device {device}: not listed by the driver")
            lane, card = self._cards[device]
            return await self._call(lane, lambda: function(card.handle))
        except DevicesUnavailable as error:
            raise NotMade(str(error)) from None
        except (nvml.NVMLError, Hung) as error:
            raise NotMade(f"device {device}: {_said(error)}") from None

    def _open(self) -> None:
        nvml.nvmlInit()
        self.driver = str(nvml.nvmlSystemGetDriverVersion())
        self._xids.listen()

    def _shut(self) -> None:
        self._xids.stop_listening()
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    async def _forget(self) -> None:
        # Free the driver's samples.
        forgotten, self._loads = self._loads, {}
        for device, loads in forgotten.items():
            if device in self._cards:
                with suppress(Hung):
                    await self._cards[device][0].call(loads.forget)

    async def _count(self) -> int:
        def count() -> int:
            listed = int(nvml.nvmlDeviceGetCount())
            self._xids.listen()
            return listed

        def reopened() -> int:
            self._shut()
            self._open()
            return int(nvml.nvmlDeviceGetCount())

        try:
            return await self._call(self._driver, count)
        except nvml.NVMLError:
            await self._forget()
            return await self._call(self._driver, reopened)

    async def _read(self) -> tuple[Device, ...]:
        async with self._turn:
            try:
                count = await self._count()
            except (nvml.NVMLError, Hung) as error:
                if not self._known:
                    raise DevicesUnavailable(
                        f"the NVIDIA driver cannot list its devices ({error}); see dmesg and "
                        "nvidia-smi"
                    ) from None
                lost = {device.index: _said(error) for device in self._known.values()}
                return self._devices({}, lost)
            return await self._read_each(count)

    async def _read_each(self, count: int) -> tuple[Device, ...]:
        looks = []
        for index in range(count):
            lane = self._lanes.get(index) or self._lane(f"device {index}")
            self._lanes[index] = lane
            looks.append((lane, await self._begun(lane, partial(self._look_at, index))))
        lost: dict[int, str] = {}
        found: dict[str, _Looked] = {}
        self._cards = {}
        for index, (lane, look) in enumerate(looks):
            try:
                looked = await look
            except (nvml.NVMLError, Hung) as error:
                lost[index] = _said(error)
                continue
            lane.name = name = looked.device.id
            self._known[name] = looked.device
            self._cards[name] = lane, looked.card
            found[name] = looked
        self._xids.keep_watching(found)
        # A driver that no longer lists a lost GPU numbers the others without it.
        listed = {self._known[device].index for device in found}
        for device in self._known.values():
            if device.id not in found and device.index in listed:
                taken = {other.index for other in self._known.values()}
                free = next(i for i in range(count, count + len(taken) + 1) if i not in taken)
                self._known[device.id] = msgspec.structs.replace(device, index=free)
        return self._devices(found, lost)

    def _look_at(self, index: int) -> _Looked:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        card = _Card(handle, _bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId))
        device = _describe(card, index)
        self._xids.watch(device.id, handle)
        if device.mode == "mig":
            with suppress(nvml.NVMLError_NoPermission):  # the agent then closes MIG mode
                # Add the sizes of its MIG profiles and the slices of foreign instances.
                known = mig.profiles(handle)
                there = mig.instances(handle, known) if self._ours.kept else ()
                foreign = (each.cut for each in there if not self._ours.made(device.id, each.cut))
                device = msgspec.structs.replace(
                    device,
                    mig_sizes=tuple(
                        MigSize(profile=name, memory_mib=size.memory_mib)
                        for name, size in known.items()
                    ),
                    closed_slices=reduce(or_, map(mig.slices, foreign), 0),
                )
        trouble = _trouble(handle) or ("" if device.mode == "mig" else _fabric_trouble(handle))
        return _Looked(card, device, trouble, tuple(_nvlink_remotes(handle)))

    def _devices(self, found: Mapping[str, _Looked], lost: dict[int, str]) -> tuple[Device, ...]:
        lanes = _nvlink_lanes(found)
        devices = []
        for device in self._known.values():
            if (looked := found.get(device.id)) is None:
                reason = lost.get(device.index, "the driver no longer lists the device")
            else:
                reason = looked.trouble or self._xids.recent(device.id)
            faulty = (mig.slices(cut) for cut, _ in self._xids.faults(device.id))
            devices.append(
                msgspec.structs.replace(
                    device,
                    healthy=not reason,
                    health_reason=reason,
                    closed_slices=reduce(or_, faulty, device.closed_slices),
                    nvlink_lanes=lanes.get(device.id, {}),
                )
            )
        return tuple(sorted(devices, key=lambda device: (device.index, device.id)))

    async def _heard(self, wait_s: float) -> bool:
        async with self._turn:
            try:
                heard = await self._call(self._listening, partial(self._xids.wait, wait_s))
            except Hung:
                await asyncio.sleep(wait_s)  # GPUs are only probed in the meantime
                heard = False
        if not isinstance(heard, bool):
            heard = await self._note(heard)
        woken = self._woken.is_set()
        self._woken.clear()
        return heard or woken

    async def _note(self, event: Any) -> bool:
        xid = int(event.eventData)
        if xid in self._xids.ignored:
            return xid in NOTICE_XIDS
        names = {_address(card.handle): name for name, (_, card) in self._cards.items()}
        device = names.get(_address(event.device), "")
        if not device:
            try:
                device = await self._call(
                    self._naming, lambda: str(nvml.nvmlDeviceGetUUID(event.device))
                )
            except (nvml.NVMLError, Hung):
                return True  # lost already, as the next inventory will show
        number = int(event.gpuInstanceId)
        if number != NO_INSTANCE and device in self._cards:
            lane, card = self._cards[device]
            with suppress(nvml.NVMLError, Hung):
                cut = await self._call(lane, partial(mig.numbered, card.handle, number))
                if cut is not None:
                    self._xids.note_fault(device, cut, xid)
                    return True
        self._xids.note(device, xid)
        return True


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Hung) else f"NVML: {error}"


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


def _describe(card: _Card, index: int) -> Device:
    handle = card.handle
    name = str(nvml.nvmlDeviceGetName(handle))
    model = name if name.startswith("NVIDIA") else f"NVIDIA {name}"
    memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
    in_mig_mode = False
    with suppress(*UNKNOWN):
        in_mig_mode = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    numa = -1  # also of a machine with only one NUMA node
    with suppress(OSError, ValueError):
        of_pcie = Path(f"/sys/bus/pci/devices/{card.bus_id}/numa_node")
        numa = int(of_pcie.read_text("ascii"))
    profiles = mig_profiles(_FAMILY, model)
    mig_slots = max((len(profile.starts) for profile in profiles), default=_MIG_SLOTS)
    return Device(
        id=str(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        family=_FAMILY,
        model=model,
        memory_mib=memory_mib,
        physical_memory_mib=memory_mib,
        slots=mig_slots if in_mig_mode else SLOTS,
        mode="mig" if in_mig_mode else "hami-core",
        numa=numa if numa >= 0 else None,
    )


def _bus_id(raw: bytes | str) -> str:
    # NVML's `00000000:3B:00.0` is `0000:3b:00.0` in sysfs.
    text = raw.decode() if isinstance(raw, bytes) else raw
    return text.lower()[-len("0000:3b:00.0") :]


def _trouble(handle: Any) -> str:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
        with suppress(*UNKNOWN):
            asked = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
            answer = nvml.nvmlDeviceGetFieldValues(handle, [asked])[0]
            if answer.nvmlReturn == nvml.NVML_SUCCESS and (action := int(answer.value.uiVal)):
                remedy = _ACTIONS.get(action, "see nvidia-smi -q")
                return f"the driver requests recovery action {action}: {remedy}"
        with suppress(*UNKNOWN):
            _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            if failed:
                return "memory row remapping failed: replace the device"
            if pending:
                return "memory row remapping is pending: reset the device"
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    return ""


def _fabric_trouble(handle: Any) -> str:
    # CUDA would fail (error 802) on a GPU behind NVSwitches that was not registered with the fabric
    # after the boot, by nvidia-fabricmanager for example. In MIG mode it uses no NVLink.
    found = nvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(found))
    except (*UNKNOWN, nvml.NVMLError_ArgumentVersionMismatch):
        return ""
    if found.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and found.status != nvml.NVML_SUCCESS:
        return f"NVLink fabric: registration failed ({nvml.NVMLError(found.status)})"
    if found.state == nvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS:
        return "NVLink fabric: registration is in progress; is nvidia-fabricmanager running?"
    if found.state == nvml.NVML_GPU_FABRIC_STATE_NOT_STARTED and _has_switch(handle):
        return "NVLink fabric: registration has not started; is nvidia-fabricmanager running?"
    return ""


def _has_switch(handle: Any) -> bool:
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        with suppress(nvml.NVMLError):  # the link is down, or the GPU has no more
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                return True
    return False


def _nvlink_lanes(found: Mapping[str, _Looked]) -> dict[str, dict[str, int]]:
    by_bus = {looked.card.bus_id: uuid for uuid, looked in found.items()}
    lanes: dict[str, dict[str, int]] = {uuid: {} for uuid in found}
    switched: dict[str, int] = {}
    for uuid, looked in found.items():
        for remote in looked.remotes:
            peer = by_bus.get(remote)
            if peer is None:
                switched[uuid] = switched.get(uuid, 0) + 1
            else:
                lanes[uuid][peer] = lanes[uuid].get(peer, 0) + 1
    # GPUs on one NVSwitch are peers of one another.
    for uuid, width in switched.items():
        for peer, peer_width in switched.items():
            if peer != uuid:
                lanes[uuid][peer] = min(width, peer_width)
    return lanes


def _nvlink_remotes(handle: Any) -> Iterator[str]:
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:
            return  # the GPU has no more links
        if not active:
            continue
        try:
            remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
        except nvml.NVMLError:
            continue  # the link just went down; others may be up
        yield _bus_id(remote.busId)


def _hold_memory(card: Any, cgroup: Path, memory: int) -> bool:
    """Limit the processes of a cgroup to `memory` bytes of the GPU; see `DeviceBackend`.

    Drivers support limits from R615 on, for root on Linux, and only for whole GPUs. NVML opens the
    cgroup's folder, so this process must see the path. A limit ends with the cgroup."""
    folder = os.fsencode(cgroup)
    found = nvml.c_nvmlGetMemoryLimits_v1_t(folder)
    try:
        try:
            nvml.nvmlDeviceGetMemoryLimits_v1(card, found)
            held = int(found.hardLimit)
        # no limit: the driver answers so, or with the maximum
        except (nvml.NVMLError_NotFound, *UNKNOWN):
            held = int(nvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
        if held != memory:
            wanted = nvml.c_nvmlSetMemoryLimits_v1_t(folder, _NO_PROMISE, memory)
            nvml.nvmlDeviceSetMemoryLimits_v1(card, wanted)
    except UNKNOWN:
        return False
    return True
