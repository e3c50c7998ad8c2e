"""What an ask comes to on one kind of device: the rules of each mode of sharing.

A `Demand` says what must be free and what is charged. It depends on the ask and on what the device
is, never on what it has free, so it is worked out once per class of pods and kind of device."""

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

    `alone`: nothing else may hold the device. `profile`: the smallest MIG profile that will do; the
    instance is made at the first of `options` that is free, which may be a larger one where the
    card may only be cut in certain ways. `charges` are what an instance at each of them takes, in
    MiB; `memory_mib` is the least."""

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
        """Start and mask of slices of the options."""
        return tuple((place.start, place.mask) for place in self.options)

    def free_places(self, slices: int, group: str, memory_mib: int) -> Iterator[tuple[Place, int]]:
        """The options that a card has room for, each with its charge.

        These are the card's occupied slices, the group that they are of, and its free memory: it
        may hold shares that are no instances, from before it was cut."""
        for place, charge in zip(self.options, self.charges, strict=True):
            free = not place.mask & slices and (not slices or place.group == group)
            if free and charge <= memory_mib:
                yield place, charge


def demand(ask: Ask, device: Device, known: Known = ()) -> Demand | RefusalCode:
    """What the ask comes to on a device like this one, or why it can never be met there.

    `known` are the ways in which cards may be cut (`knownMigGeometries`)."""
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
    # HAMi-core and MPS. A full 100 % of the cores is the device alone; an ask for none of them is
    # not put where all are taken (HAMi's `CardComputeUnitsExhausted`).
    memory_mib = memory_needed_mib(ask, device)
    if ask.cores == WHOLE:
        return Demand(memory_mib, device.cores, device.cores, alone=True)
    return Demand(memory_mib, max(ask.cores, 1), ask.cores)


def memory_needed_mib(ask: Ask, device: Device) -> int:
    """The memory asked for, in MiB of this device."""
    if ask.memory_mib is None:
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        return device.memory_mib * percent // WHOLE
    if ask.cap_memory:
        return min(ask.memory_mib, device.memory_mib)
    return ask.memory_mib


def _whole(device: Device) -> Demand:
    return Demand(
        memory_mib=device.memory_mib,
        cores_needed=device.cores,
        cores=device.cores,
        alone=True,
        template_cpu=template_cpu_of(device),
    )


def _mig(ask: Ask, device: Device, known: Known) -> Demand | RefusalCode:
    """An instance of the profile that is named, or the smallest that holds the ask; a whole card is
    the largest there is."""
    options = _options(device, known)
    if ask.profile:
        fitting = [place for place in options if place.profile.name == ask.profile]
    else:
        # By memory alone: a percent of compute chooses no instance (`selectMigCandidate` of HAMi,
        # `TryAddPod` of Volcano), which has the cores that it has.
        needed_mib = _instance_needed_mib(ask, device)
        fitting = [place for place in options if place.profile.memory_mib >= needed_mib]
    whole = ask.memory_mib is None and ask.memory_percent in (None, WHOLE) and not ask.profile
    if ask.cap_memory and not ask.profile:  # what is capped to the card is the whole card
        whole = whole or memory_needed_mib(ask, device) >= device.memory_mib
    if not fitting and whole:
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
    """Memory that the ask needs in one part, and that of the largest part of the device, in MiB.

    Both are 0 for a profile by name: on a device that lacks it, it has no size."""
    if device.mode != "mig":
        return memory_needed_mib(ask, device), device.memory_mib
    if ask.profile:
        return 0, 0
    sizes = (place.profile.memory_mib for place in _options(device, known))
    return _instance_needed_mib(ask, device), max(sizes, default=0)


def memory_charged_mib(profile: MigProfile, device: Device) -> int:
    """What an instance takes of the card, which may report less than its profiles add up to: its
    slices must never oversell its memory."""
    known = mig_profiles(device.family, device.model)
    slices = max(other.starts[0] + other.size for other in known)
    return min(profile.memory_mib, device.memory_mib * profile.size // slices)


def _vnpu(ask: Ask, device: Device) -> Demand | RefusalCode:
    """The smallest template that holds the memory; several devices, or more memory than any
    template has, are whole devices (HAMi's rule for Ascend)."""
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
