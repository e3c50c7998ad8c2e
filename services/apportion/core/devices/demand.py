"""Compute what an ask needs of one type of device, by the rules of each sharing mode.

A `Demand` depends on the ask and the type of device, never on what is free, so it is computed once
per class of pods and type of device."""

from collections.abc import Iterator
from typing import NamedTuple

from apportion.core.devices.catalogue import FAMILIES, MigProfile, mig_profiles
from apportion.core.devices.geometries import Place, groups_of, place_at
from apportion.core.devices.shares import template_cpu_of
from apportion_schemas import Ask, Device, RefusalCode
from apportion_schemas.configuration import MigGeometries
from apportion_schemas.quantities import WHOLE

Known = tuple[MigGeometries, ...]


class Demand(NamedTuple):
    """What must be free on a device (`*_needed`), and what is charged to it.

    `alone`: the device must be otherwise unused. `profile`: the smallest MIG profile that suffices.
    The instance is created at the first free one of `options`, which can be larger where only
    certain geometries are allowed. `charges` has the MiB charged for each option; `memory_mib` is
    the smallest."""

    memory_mib: int
    cores_needed: int
    cores: int
    alone: bool = False
    template_cpu: int = 0
    template: str | None = None
    profile: MigProfile | None = None
    options: tuple[Place, ...] = ()
    charges: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Start and slice mask of each option."""
        return tuple((place.start, place.mask) for place in self.options)

    def free_places(self, slices: int, group: str, memory_mib: int) -> Iterator[tuple[Place, int]]:
        """Yield the options that fit on a GPU, each with its charge in MiB.

        The arguments are the GPU's slices in use, their group, and its free memory. The memory is
        checked too, because the GPU can have shares from before it was cut into instances."""
        for place, charge in zip(self.options, self.charges, strict=True):
            free = not place.mask & slices and (not slices or place.group == group)
            if free and charge <= memory_mib:
                yield place, charge


def demand(ask: Ask, device: Device, known: Known = ()) -> Demand | RefusalCode:
    """Return what the ask needs of such a device, or why it can never fit there.

    `known` are the allowed MIG geometries (`knownMigGeometries`)."""
    if device.mode == "mig":
        return _mig(ask, device, known)
    if ask.profile:
        return RefusalCode.MODE_MISMATCH
    if ask.whole:
        return _whole(device)
    if device.mode == "vnpu":
        return _vnpu(ask, device)
    if device.mode == "exclusive":
        return RefusalCode.MODE_MISMATCH
    # HAMi-core and MPS. 100 % of the cores needs the device exclusively; an ask for 0 % is refused
    # if all cores are in use (HAMi's `CardComputeUnitsExhausted`).
    memory_mib = memory_needed_mib(ask, device)
    if ask.cores == WHOLE:
        return Demand(memory_mib, device.cores, device.cores, alone=True)
    return Demand(memory_mib, max(ask.cores, 1), ask.cores)


def memory_needed_mib(ask: Ask, device: Device) -> int:
    """Return the memory that the ask needs of this device, in MiB."""
    if ask.memory_mib is None:
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        return device.memory_mib * percent // WHOLE
    if ask.cap_memory:
        return min(ask.memory_mib, device.memory_mib)
    return ask.memory_mib


def _whole(device: Device) -> Demand:
    cpu = template_cpu_of(device)
    return Demand(device.memory_mib, device.cores, device.cores, alone=True, template_cpu=cpu)


def _mig(ask: Ask, device: Device, known: Known) -> Demand | RefusalCode:
    options = _options(device, known)
    if ask.profile:
        fitting = [place for place in options if place.profile.name == ask.profile]
    else:
        # By memory alone: cores do not influence the choice (HAMi's `selectMigCandidate`, Volcano's
        # `TryAddPod`).
        needed_mib = _instance_needed_mib(ask, device)
        fitting = [place for place in options if place.profile.memory_mib >= needed_mib]
    whole = ask.memory_mib is None and ask.memory_percent in (None, WHOLE) and not ask.profile
    if ask.cap_memory and not ask.profile:  # capped to the memory of the device: the whole device
        whole = whole or memory_needed_mib(ask, device) >= device.memory_mib
    if not fitting and whole:  # the whole device is its largest instance
        most_mib = max((place.profile.memory_mib for place in options), default=0)
        fitting = [place for place in options if place.profile.memory_mib == most_mib]
    if not fitting:
        return RefusalCode.MIG_NO_PROFILE
    if fitting[0].group:
        fitting.sort(key=lambda place: (place.profile.memory_mib, place.number, place.position))
    else:
        fitting = [place for place in fitting if place.profile is fitting[0].profile]
    profile = fitting[0].profile
    charges = tuple(memory_charged_mib(place.profile, device) for place in fitting)
    return Demand(min(charges), 0, 0, profile=profile, options=tuple(fitting), charges=charges)


def _options(device: Device, known: Known) -> list[Place]:
    if groups := groups_of(known, device.family, device.model, device.mig_sizes):
        return [place for group in groups for place in group]
    profiles = mig_profiles(device.family, device.model, device.mig_sizes)
    return [place_at(profile, start) for profile in profiles for start in profile.starts]


def _instance_needed_mib(ask: Ask, device: Device) -> int:
    return device.physical_memory_mib if ask.whole else memory_needed_mib(ask, device)


def largest_part(ask: Ask, device: Device, known: Known = ()) -> tuple[int, int]:
    """Return the ask's memory and that of the device's largest part, in MiB.

    Both are 0 for an ask by profile: a device that lacks the profile has no size for it."""
    if device.mode != "mig":
        return memory_needed_mib(ask, device), device.memory_mib
    if ask.profile:
        return 0, 0
    sizes = (place.profile.memory_mib for place in _options(device, known))
    return _instance_needed_mib(ask, device), max(sizes, default=0)


def memory_charged_mib(profile: MigProfile, device: Device) -> int:
    """Return the memory charged for an instance, in MiB.

    A GPU can report less memory than its profiles add up to; its slices must never oversell it."""
    known = mig_profiles(device.family, device.model)
    slices = max(other.starts[0] + other.size for other in known)
    return min(profile.memory_mib, device.memory_mib * profile.size // slices)


def _vnpu(ask: Ask, device: Device) -> Demand | RefusalCode:
    memory_mib = memory_needed_mib(ask, device)
    if memory_mib > device.memory_mib:
        return RefusalCode.TEMPLATE_NONE_FITS
    # The smallest template with enough memory. Several devices, or more memory than any template
    # has, are whole devices (HAMi's rule for Ascend).
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
