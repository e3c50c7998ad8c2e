"""Take shares from a device's free amounts, and give them back.

Invariant: `release` is the exact inverse of `occupy`. `occupy` refuses more than the device has
free, so no order of events oversells a device."""

from msgspec import Struct

from apportion.core.devices.catalogue import FAMILIES, alike_number, template_of
from apportion.core.devices.cordons import Cordon
from apportion_schemas import Device, Share

MIG_SLICES = 8  # the most memory slices that a GPU has


class DeviceState(Struct, eq=False, gc=False):
    """A device with its free amounts, and whether new shares may be allocated on it.

    `healthy` is False if the agent or Kubernetes reports the device as unhealthy."""

    device: Device
    memory_free_mib: int
    cores_free: int
    slots_free: int
    template_cpu_free: int  # AI CPUs of an NPU
    slices: int = 0  # mask of the MIG memory slices in use
    group: str = ""  # of its MIG instances, or the template of all its shares
    present: bool = True  # False: no longer reported
    agent_health: tuple[bool, str] = (True, "")  # as reported, and why
    healthy: bool = True
    health_reason: str = ""
    cordon: str = ""  # the reasons of `cordons`
    cordons: tuple[Cordon, ...] = ()

    @property
    def open(self) -> bool:
        """Return True if new shares may be allocated on the device."""
        return self.present and self.healthy and not self.cordon

    @property
    def taken(self) -> int:
        """Return the mask of the MIG memory slices that a new instance cannot use."""
        return self.slices | self.device.closed_slices

    @property
    def idle(self) -> bool:
        """Return True if no share of the device is allocated."""
        return self.slots_free == self.device.slots


class Oversold(Exception):
    """Raised if a share needs more than the device has free."""


def slice_mask(share: Share) -> int:
    """Return the MIG memory slices of the share as a bit mask; 0 if it has no MIG instance."""
    instance = share.instance
    return ((1 << instance.size) - 1) << instance.start if instance else 0


def template_cpu(share: Share, state: DeviceState) -> int:
    """Return the AI CPUs of the share's vNPU template; 0 if it has no template."""
    if share.template is None:
        return 0
    template = template_of(state.device.family, share.template)
    return template.cpu if template else 0


def template_cpu_of(device: Device) -> int:
    """Return how many AI CPUs an NPU can divide among templates; 0 if it has no templates."""
    known = FAMILIES.get(device.family)
    return known.template_cpu if known else 0


def occupy(state: DeviceState, share: Share) -> None:
    """Take the share from the device's free amounts. Raises Oversold if too little is free."""
    if share.instance is None and share.template is None:
        memory_free_mib, cores_free = state.memory_free_mib, state.cores_free
        if (
            state.slots_free >= 1
            and 0 <= share.memory_mib <= memory_free_mib
            and 0 <= share.cores <= cores_free
        ):  # fast path for the common case: every service runs the fold
            state.slots_free -= 1
            state.memory_free_mib = memory_free_mib - share.memory_mib
            state.cores_free = cores_free - share.cores
            return
    mask, instance = slice_mask(share), share.instance
    cpu = template_cpu(share, state)
    leaves = instance is not None and bool(state.slices) and instance.group != state.group
    of_all = _template_of_all(share, state)
    for quantity, needed, available in (
        ("slots", 1, state.slots_free),
        ("memory_mib", share.memory_mib, state.memory_free_mib),
        ("cores", share.cores, state.cores_free),
        ("template_cpu", cpu, state.template_cpu_free),
        ("slices", (mask & state.slices).bit_count(), 0),
        ("slices beyond the last", (mask >> MIG_SLICES).bit_count(), 0),
        ("slices of another MIG group", int(bool(mask) and leaves), 0),
        ("shares of another template", int(bool(of_all) and state.group not in ("", of_all)), 0),
    ):
        if needed > max(available, 0):  # available is negative if the device now offers less
            raise Oversold(
                f"device {state.device.id}: {quantity} needed {needed}, available {available}"
            )
    retake(state, share)


def retake(state: DeviceState, share: Share) -> None:
    """Take a released share again, even if the device now has too little for it."""
    state.slots_free -= 1
    state.memory_free_mib -= share.memory_mib
    state.cores_free -= share.cores
    if share.instance is None and share.template is None:
        return
    state.template_cpu_free -= template_cpu(share, state)
    mask = slice_mask(share)
    if mask and share.instance:
        state.group = share.instance.group
    elif of_all := _template_of_all(share, state):
        state.group = of_all
    state.slices |= mask


def release(state: DeviceState, share: Share) -> None:
    """Give back what `occupy` took for the share."""
    state.slots_free += 1
    state.memory_free_mib += share.memory_mib
    state.cores_free += share.cores
    if share.instance is None and share.template is None:
        return
    state.template_cpu_free += template_cpu(share, state)
    state.slices &= ~slice_mask(share)
    if not state.slices and (state.idle or not _template_of_all(share, state)):
        state.group = ""


def _template_of_all(share: Share, state: DeviceState) -> str:
    """Return the share's template if all shares of the device must have it, else an empty text."""
    name = share.template or ""
    return name if alike_number(state.device.family, name) else ""
