"""What an ask comes to on one kind of device: the rules of each mode of sharing.

A `Demand` says what must be free and what is charged. It depends on the ask and on what the device
is, never on what it has free, so it is worked out once per class of pods and kind of device.
"""

from typing import NamedTuple

from apportion.core.devices.catalogue import FAMILIES, MigProfile, mig_profiles
from apportion.core.devices.shares import template_cpu_of
from apportion_schemas import Ask, Device, RefusalCode
from apportion_schemas.quantities import WHOLE


class Demand(NamedTuple):
    """What must be free on a device (`*_needed`), and what is charged to it.

    `alone`: nothing else may hold the device. `profile`: the MIG profile whose instance is made, at
    the first of `places` (start and mask of slices) that is free.
    """

    memory_mib: int
    cores_needed: int
    cores: int
    alone: bool = False
    template_cpu: int = 0
    template: str | None = None
    profile: MigProfile | None = None
    places: tuple[tuple[int, int], ...] = ()


def demand(ask: Ask, device: Device) -> Demand | RefusalCode:
    """What the ask comes to on a device like this one, or why it can never be met there."""
    if ask.profile:
        return _named(ask, device)
    if ask.whole:
        return _whole(device)
    return _MODES[device.mode](ask, device)


def memory_needed_mib(ask: Ask, device: Device) -> int:
    """The memory asked for, in MiB of this device."""
    if ask.memory_mib is None:
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        return device.memory_mib * percent // WHOLE
    if ask.cap_memory:
        return min(ask.memory_mib, device.memory_mib)
    return ask.memory_mib


def _whole(device: Device) -> Demand | RefusalCode:
    if device.mode == "mig":
        return _instance(device, device.physical_memory_mib, WHOLE, largest=True)
    return Demand(
        memory_mib=device.memory_mib,
        cores_needed=device.cores,
        cores=device.cores,
        alone=True,
        template_cpu=template_cpu_of(device),
    )


def _share(ask: Ask, device: Device) -> Demand | RefusalCode:
    """HAMi-core and MPS. A full 100 % of the cores is the device alone; an ask for none of them is
    not put where all are taken (HAMi's `CardComputeUnitsExhausted`).
    """
    memory_mib = memory_needed_mib(ask, device)
    if ask.cores == WHOLE:
        return Demand(memory_mib, device.cores, device.cores, alone=True)
    return Demand(memory_mib, max(ask.cores, 1), ask.cores)


def _mig(ask: Ask, device: Device) -> Demand | RefusalCode:
    whole = ask.memory_mib is None and ask.memory_percent in (None, WHOLE)
    return _instance(device, memory_needed_mib(ask, device), ask.cores, largest=whole)


def _named(ask: Ask, device: Device) -> Demand | RefusalCode:
    """An instance of exactly the profile that the ask names (`nvidia.com/mig-1g.5gb`)."""
    if device.mode != "mig":
        return RefusalCode.MODE_MISMATCH
    profiles = mig_profiles(device.family, device.model)
    found = next((profile for profile in profiles if profile.name == ask.profile), None)
    return _cut(device, found, profiles) if found else RefusalCode.MIG_NO_PROFILE


def _instance(
    device: Device, memory_mib: int, cores: int, *, largest: bool
) -> Demand | RefusalCode:
    """The smallest instance that holds the ask; the whole card is the largest there is."""
    profiles = mig_profiles(device.family, device.model)
    fitting = [p for p in profiles if p.memory_mib >= memory_mib and p.cores >= cores]
    if not fitting and largest:
        fitting = list(profiles[-1:])
    if not fitting:
        return RefusalCode.MIG_NO_PROFILE
    return _cut(device, fitting[0], profiles)


def _cut(device: Device, profile: MigProfile, profiles: tuple[MigProfile, ...]) -> Demand:
    slices = max(p.starts[0] + p.size for p in profiles)
    # A card may report less than its profiles add up to; its slices must never oversell its memory.
    memory_charged_mib = min(profile.memory_mib, device.memory_mib * profile.size // slices)
    return Demand(memory_charged_mib, 0, 0, profile=profile, places=profile.places)


def _vnpu(ask: Ask, device: Device) -> Demand | RefusalCode:
    """The smallest template that holds the memory; several devices, or more memory than any
    template has, are whole devices (HAMi's rule for Ascend).
    """
    memory_mib = memory_needed_mib(ask, device)
    if memory_mib > device.memory_mib:
        return RefusalCode.TEMPLATE_NONE_FITS
    family = FAMILIES.get(device.family)
    if ask.count == 1 and family is not None:
        for template in family.templates:
            if template.memory_mib >= memory_mib:
                return Demand(
                    template.memory_mib,
                    template.cores,
                    template.cores,
                    template_cpu=template.cpu,
                    template=template.name,
                )
    return _whole(device)


def _exclusive(ask: Ask, device: Device) -> Demand | RefusalCode:
    del ask, device
    return RefusalCode.MODE_MISMATCH


_MODES = {
    "hami-core": _share,
    "mps": _share,
    "mig": _mig,
    "vnpu": _vnpu,
    "exclusive": _exclusive,
}
