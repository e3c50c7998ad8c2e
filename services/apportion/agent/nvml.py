"""The GPUs of this machine, as the driver tells: the only module that talks to NVML.

A card is unhealthy when the driver has lost it, asks for its reset, or has reported a critical XID;
unlike its peers it is healthy again by itself, once it answers well and has been quiet for a while.
Invariant: NVML is called from one thread only, and a card that the driver lost stays in the
inventory, unhealthy, for as long as this process lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pynvml as nvml

from apportion.agent.backend import DevicesUnavailable
from apportion.agent.models import SLOTS
from apportion.core.devices.catalogue import mig_profiles
from apportion.runtime.process.clock import Clock
from apportion_schemas import Device

IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of the program, not of the card: the list that HAMi and NVIDIA's own plugin ignore."""
QUIET_S = 300.0
"""A card that had a critical XID is offered again after this long without another."""
PROBE_S = 10.0
_WAIT_MS = 1_000
_MIG_SLOTS = 7
_MIB = 1 << 20
_FAMILY = "nvidia"

T = TypeVar("T")


class _Card(NamedTuple):
    """A card that answers: NVML's handle, and its address as sysfs writes it."""

    handle: Any
    bus_id: str


class NvmlBackend:
    """A `DeviceBackend` over the NVIDIA driver."""

    simulated = False

    def __init__(self, clock: Clock, *, quiet_s: float = QUIET_S, probe_s: float = PROBE_S) -> None:
        """Open the driver.

        Raises:
            DevicesUnavailable: there is no driver here, or it does not answer.
        """
        self._clock = clock
        self._quiet_s = quiet_s
        self._probe_s = probe_s
        self._known: dict[str, Device] = {}
        self._xids: dict[str, tuple[int, float]] = {}
        self._seen: tuple[Device, ...] = ()
        self._watched: set[str] = set()
        self._closed = False
        try:
            nvml.nvmlInit()
            self.driver = str(nvml.nvmlSystemGetDriverVersion())
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            raise DevicesUnavailable(
                f"the NVIDIA driver does not answer ({error}); install it (nvidia-smi must work "
                "here), or simulate devices with --simulate 8xH100-80GB"
            ) from None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")

    async def inventory(self) -> tuple[Device, ...]:
        """See `DeviceBackend`."""
        self._seen = await self._call(self._read)
        return self._seen

    async def changed(self) -> None:
        """See `DeviceBackend`: an XID, or a probe that differs from the last inventory."""
        while True:
            probe_at = self._clock.monotonic() + self._probe_s
            while self._clock.monotonic() < probe_at:
                if await self._call(self._wait_for_xid):
                    return
            if await self._call(self._read) != self._seen:
                return

    async def close(self) -> None:
        """See `DeviceBackend`. Returns once no call into the driver is under way."""
        shut = self._call(self._shut)
        self._closed = True
        await shut
        self._thread.shutdown()

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run the function on the driver's thread; after `close` it never returns."""
        if self._closed:
            return asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _shut(self) -> None:
        nvml.nvmlEventSetFree(self._events)
        nvml.nvmlShutdown()

    def _read(self) -> tuple[Device, ...]:
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise DevicesUnavailable(
                f"the NVIDIA driver does not list its devices ({error}); see dmesg and nvidia-smi"
            ) from None
        lost: dict[int, str] = {}
        cards: dict[str, _Card] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                card = _Card(handle, _bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId))
                device = _describe(card, index)
            except nvml.NVMLError as error:
                lost[index] = f"NVML: {error}"
                continue
            self._known[device.id] = device
            cards[device.id] = card
            self._watch(device.id, handle)
        lanes = _nvlink_lanes(cards)
        devices = [
            msgspec.structs.replace(
                self._with_health(device, cards.get(device.id), lost),
                nvlink_lanes=lanes.get(device.id, {}),
            )
            for device in self._known.values()
        ]
        return tuple(sorted(devices, key=lambda device: (device.index, device.id)))

    def _with_health(self, device: Device, card: _Card | None, lost: dict[int, str]) -> Device:
        if card is None:
            reason = lost.get(device.index, "the driver no longer lists the device")
        else:
            reason = _trouble(card.handle) or self._recent_xid(device.id)
        return msgspec.structs.replace(device, healthy=not reason, health_reason=reason)

    def _recent_xid(self, device: str) -> str:
        xid, at_s = self._xids.get(device, (0, 0.0))
        if xid and self._clock.monotonic() - at_s < self._quiet_s:
            return f"XID {xid}"
        self._xids.pop(device, None)
        return ""

    def _watch(self, device: str, handle: Any) -> None:
        """Ask for the card's critical XIDs. A card that has no such events is only probed."""
        if device in self._watched:
            return
        self._watched.add(device)
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError_NotSupported:
            return

    def _wait_for_xid(self) -> bool:
        """Whether a critical XID came within a second."""
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
        except nvml.NVMLError_Timeout:
            return False
        except nvml.NVMLError:
            # The driver dropped the events (a card fell off the bus): the probe will tell which.
            time.sleep(_WAIT_MS / 1_000)
            return False
        if event.eventType != nvml.nvmlEventTypeXidCriticalError or event.eventData in IGNORED_XIDS:
            return False
        try:
            device = str(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError:
            return True  # lost already: the next inventory says so
        self._xids[device] = (int(event.eventData), self._clock.monotonic())
        return True


def _describe(card: _Card, index: int) -> Device:
    """A card without health and links. Raises NVMLError."""
    handle = card.handle
    name = str(nvml.nvmlDeviceGetName(handle))
    model = name if name.startswith("NVIDIA") else f"NVIDIA {name}"
    memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
    mig = _mig_enabled(handle)
    profiles = mig_profiles(_FAMILY, model)
    mig_slots = max((len(profile.starts) for profile in profiles), default=_MIG_SLOTS)
    return Device(
        id=str(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        family=_FAMILY,
        model=model,
        memory_mib=memory_mib,
        physical_memory_mib=memory_mib,
        slots=mig_slots if mig else SLOTS,
        mode="mig" if mig else "hami-core",
        numa=_numa(card.bus_id),
    )


def _mig_enabled(handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError_NotSupported:
        return False


def _bus_id(raw: bytes | str) -> str:
    """`00000000:3B:00.0` of NVML as `0000:3b:00.0` of sysfs."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    return text.lower()[-len("0000:3b:00.0") :]


def _numa(bus_id: str) -> int | None:
    """The NUMA node whose PCIe root the card hangs on, None where there is just one."""
    try:
        node = int(Path(f"/sys/bus/pci/devices/{bus_id}/numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _trouble(handle: Any) -> str:
    """Why the driver would not put work on the card, or nothing."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
        action = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[
            0
        ]
        if action.nvmlReturn == nvml.NVML_SUCCESS and action.value.uiVal:
            return f"the driver asks for recovery action {action.value.uiVal}: reset the device"
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    except nvml.NVMLError_NotSupported:
        return ""
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    if failed:
        return "memory row remapping failed: replace the device"
    return "memory row remapping is pending: reset the device" if pending else ""


def _nvlink_lanes(cards: dict[str, _Card]) -> dict[str, dict[str, int]]:
    """NVLink lanes from each card to each peer; cards on one NVSwitch are peers of one another."""
    by_bus = {card.bus_id: uuid for uuid, card in cards.items()}
    lanes: dict[str, dict[str, int]] = {uuid: {} for uuid in cards}
    switched: dict[str, int] = {}
    for uuid, card in cards.items():
        for remote in _nvlink_remotes(card.handle):
            peer = by_bus.get(remote)
            if peer is None:
                switched[uuid] = switched.get(uuid, 0) + 1
            else:
                lanes[uuid][peer] = lanes[uuid].get(peer, 0) + 1
    for uuid, width in switched.items():
        for peer, peer_width in switched.items():
            if peer != uuid:
                lanes[uuid][peer] = min(width, peer_width)
    return lanes


def _nvlink_remotes(handle: Any) -> Iterator[str]:
    """The address at the other end of each active link: a card, or an NVSwitch."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                yield _bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except nvml.NVMLError:
            return  # no such link: the card has no more
