"""The GPUs of this machine, as the driver tells: the only module that talks to NVML.

A card is unhealthy when the driver has lost it, asks for its reset, or has reported a critical XID;
unlike its peers it is healthy again by itself, once it answers well and has been quiet for a while.
A driver that restarts under this process (an upgrade, a reload) is opened anew at the next look.
Invariants: NVML is called from one thread only; a card that the driver lost stays in the inventory,
unhealthy, for as long as this process lives; every card that answers is listened to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pynvml as nvml

from apportion.agent import nvml_limits, nvml_mig
from apportion.agent.backend import DevicesUnavailable, Load, NotMade
from apportion.agent.nvml_loads import Loads
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.models import SLOTS
from apportion.core.grants import MadeInstance
from apportion.runtime.process.clock import Clock
from apportion_schemas import Device, MigInstance

IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of the program, not of the card: the list that HAMi and NVIDIA's own plugin ignore."""
QUIET_S = 300.0
"""A card that had a critical XID is offered again after this long without another."""
PROBE_S = 10.0
_WAIT_S = 0.25
"""For an XID at a time: who wants a card to be cut waits as long for the thread."""
_MIG_SLOTS = 7
_MIB = 1 << 20
_FAMILY = "nvidia"
_UNKNOWN = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
"""What a card, or a driver older than the question, says to something that it does not have."""
_ACTIONS = {
    nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the device",
    nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end the work of the device and of its peers",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "let its work end and reset the device",
}

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
        self._events: Any = None
        self._loads = Loads()
        self._stumbled = False
        self._closed = False
        self.driver = ""
        try:
            self._open()
        except nvml.NVMLError as error:
            self._shut()
            raise DevicesUnavailable(
                f"the NVIDIA driver does not answer ({error}); install it (nvidia-smi must work "
                "here), or simulate devices: agent --simulate 8xH100-80GB, up without --gpus local"
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
            while (left_s := probe_at - self._clock.monotonic()) > 0:
                wait_s = min(left_s, _WAIT_S)
                if await self._call(partial(self._wait_for_xid, wait_s)):
                    return
            if await self._call(self._read) != self._seen:
                return

    async def make_instance(
        self, device: str, wanted: MigInstance, needed: Collection[MigInstance]
    ) -> MadeInstance:
        """See `DeviceBackend`."""
        return await self._of(device, lambda card: nvml_mig.ensure(card, wanted, needed))

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> list[str]:
        """See `DeviceBackend`."""
        return await self._of(device, lambda card: nvml_mig.keep(card, needed))

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """See `DeviceBackend`."""
        mode = (
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
        )
        await self._of(device, lambda card: nvml.nvmlDeviceSetComputeMode(card, mode))

    async def hold_memory(self, device: str, cgroup: Path, memory: int) -> bool:
        """See `DeviceBackend`."""
        return await self._of(device, lambda card: nvml_limits.hold(card, cgroup, memory))

    async def loads(self) -> tuple[Load, ...]:
        """See `DeviceBackend`."""
        return await self._call(partial(self._loads.read, [device.id for device in self._seen]))

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

    async def _of(self, device: str, function: Callable[[Any], T]) -> T:
        """Do something with a card, by NVML's handle of it. Raises NotMade."""

        def done() -> T:
            try:
                return function(nvml.nvmlDeviceGetHandleByUUID(device.encode()))
            except nvml.NVMLError as error:
                raise NotMade(f"device {device}: NVML: {error}") from None

        return await self._call(done)

    def _open(self) -> None:
        """Raises NVMLError."""
        nvml.nvmlInit()
        self.driver = str(nvml.nvmlSystemGetDriverVersion())
        self._listen()

    def _shut(self) -> None:
        """Give back what we have of the driver; one that is gone takes nothing back."""
        self._stop_listening()
        self._loads.forget()
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _listen(self) -> None:
        """Make the set of events, to which `_watch` adds each card. Raises NVMLError."""
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        self._watched.clear()
        if events is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _count(self) -> int:
        """How many cards are listed, by a driver that is opened anew if need be.

        Raises NVMLError.
        """
        try:
            count = int(nvml.nvmlDeviceGetCount())
            self._listen()
        except nvml.NVMLError:
            self._shut()
            self._open()
            count = int(nvml.nvmlDeviceGetCount())
        return count

    def _read(self) -> tuple[Device, ...]:
        try:
            count = self._count()
        except nvml.NVMLError as error:
            if not self._known:
                raise DevicesUnavailable(
                    f"the NVIDIA driver does not list its devices ({error}); see dmesg and "
                    "nvidia-smi"
                ) from None
            lost = {device.index: f"NVML: {error}" for device in self._known.values()}
            return self._devices({}, lost)
        lost = {}
        cards: dict[str, _Card] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                card = _Card(handle, _bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId))
                device = _describe(card, index)
                self._watch(device.id, handle)
            except nvml.NVMLError as error:
                lost[index] = f"NVML: {error}"
                continue
            self._known[device.id] = device
            cards[device.id] = card
        self._watched &= cards.keys()  # the events of a card that was lost went with it
        self._renumber(cards, count)
        return self._devices(cards, lost)

    def _renumber(self, cards: dict[str, _Card], count: int) -> None:
        """Keep indexes unique: a driver that lists a lost card no more counts without it."""
        listed = {self._known[device].index for device in cards}
        for device in self._known.values():
            if device.id not in cards and device.index in listed:
                taken = {other.index for other in self._known.values()}
                free = next(i for i in range(count, count + len(taken) + 1) if i not in taken)
                self._known[device.id] = msgspec.structs.replace(device, index=free)

    def _devices(self, cards: dict[str, _Card], lost: dict[int, str]) -> tuple[Device, ...]:
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
        """Ask for the card's critical XIDs. A card that has no such events is only probed.

        Raises NVMLError.
        """
        if device in self._watched:
            return
        with suppress(*_UNKNOWN):
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._watched.add(device)

    def _wait_for_xid(self, wait_s: float) -> bool:
        """Whether a critical XID came within that time, or the events must be asked for anew."""
        if self._events is None:
            time.sleep(wait_s)  # the driver was away at the last look
            return True
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, max(1, int(wait_s * 1_000)))
        except nvml.NVMLError_Timeout:
            self._stumbled = False
            return False
        except nvml.NVMLError:
            # A card fell off the bus, or the driver restarts. One lost card makes a set deaf to
            # the others: the next look makes another, of those that answer.
            if self._stumbled:
                time.sleep(wait_s)
            self._stumbled = True
            self._stop_listening()
            return True
        self._stumbled = False
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
    except _UNKNOWN:
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
        return _wanted_action(handle) or _worn_memory(handle)
    except nvml.NVMLError as error:
        return f"NVML: {error}"


def _wanted_action(handle: Any) -> str:
    """What the driver asks for. Raises NVMLError."""
    with suppress(*_UNKNOWN):
        asked = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        answer = nvml.nvmlDeviceGetFieldValues(handle, [asked])[0]
        if answer.nvmlReturn == nvml.NVML_SUCCESS and (action := int(answer.value.uiVal)):
            remedy = _ACTIONS.get(action, "see nvidia-smi -q")
            return f"the driver asks for recovery action {action}: {remedy}"
    return ""


def _worn_memory(handle: Any) -> str:
    """Whether rows of memory wait to be replaced, or cannot be. Raises NVMLError."""
    with suppress(*_UNKNOWN):
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "memory row remapping failed: replace the device"
        if pending:
            return "memory row remapping is pending: reset the device"
    return ""


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
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:
            return  # no such link: the card has no more
        if not active:
            continue
        try:
            remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
        except nvml.NVMLError:
            continue  # it went down just now, which says nothing of the others
        yield _bus_id(remote.busId)
