"""Compute what an ask (a container's device request) needs, and which MIG instances can serve it.

A `Demand` depends on the ask, the type of device and facts of the whole fleet, never on free
amounts. So it is computed once per class of pods and type of device, until such a fact changes.

`knownMigGeometries` allows groups of instances. Each instance of a group has fixed slices of its
own. So a GPU in that group can have any subset of the instances, and pods that come and go do not
fragment it. Invariant: the places of one group never overlap."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.devices.catalogue import (
    FAMILIES,
    NVIDIA,
    MigProfile,
    counts_cores,
    mig_profile,
    mig_profiles,
    normal,
)
from apportion.core.devices.shares import template_cpu_of
from apportion_schemas import Ask, Device, MigSize, RefusalCode
from apportion_schemas.configuration import MigCount, MigGeometries, MigGroup
from apportion_schemas.quantities import WHOLE

SLICE_STATES = 256  # number of masks of a GPU's eight memory slices
FULL = SLICE_STATES - 1


class Place(NamedTuple):
    """Where on a GPU a MIG instance may be: its profile, first slice and slice mask."""

    profile: MigProfile
    start: int
    mask: int
    group: str = ""  # empty if the GPU is divided freely
    number: int = 0  # of the group in the model's list, from 1
    position: int = 0  # of the instance in the group, from 0


class Unlaid(ValueError):
    """Raised with the reason if a GPU model cannot be divided into a group's MIG instances."""


Groups = tuple[tuple[Place, ...], ...]


@lru_cache(maxsize=256)
def groups_of(
    known: tuple[MigGeometries, ...], family: str, model: str, sizes: tuple[MigSize, ...] = ()
) -> Groups:
    """Return the MIG groups configured for GPUs of this model; empty without any.

    Raises Unlaid if a group does not fit on the GPU, or names a profile that the model lacks."""
    words = f"-{normal(model)}-"
    for geometries in known if family == NVIDIA else ():
        if any(f"-{normal(name)}-" in words for name in geometries.models):
            return tuple(
                laid_out(group, number, model, sizes)
                for number, group in enumerate(geometries.allowed_geometries, 1)
            )
    return ()


def laid_out(
    group: MigGroup, number: int, model: str, sizes: tuple[MigSize, ...] = ()
) -> tuple[Place, ...]:
    """Assign slices to each instance of a group, in order. Raises Unlaid if that is impossible."""
    wanted: list[MigProfile] = []
    for entry in group.geometries:
        known = mig_profile(model, entry.name, sizes)
        if known is None:
            names = ", ".join(each.name for each in mig_profiles(NVIDIA, model)) or "none"
            raise Unlaid(f"{model} has no MIG profile {entry.name}; it has {names}")
        # Groups have the gigabytes of the name; the driver's instance may be smaller, never larger.
        profile = structs.replace(known, memory_mib=min(entry.memory, known.memory_mib))
        wanted += [profile] * entry.count
    order = sorted(range(len(wanted)), key=lambda at: (-wanted[at].size, at))
    starts = _starts([wanted[at] for at in order])
    if starts is None:
        names = ", ".join(f"{entry.count} x {entry.name}" for entry in group.geometries)
        raise Unlaid(f"{names} do not fit on one {model} together")
    at_start = dict(zip(order, starts, strict=True))
    return tuple(
        place_at(profile, at_start[position])._replace(
            group=group.group, number=number, position=position
        )
        for position, profile in enumerate(wanted)
    )


def place_at(profile: MigProfile, start: int) -> Place:
    """Return the place of an instance of this profile at slice `start`, outside any group."""
    return Place(profile, start, ((1 << profile.size) - 1) << start)


def cut_state(slices: int, group: str, groups: Groups) -> int:
    """Encode how a GPU is divided: its slices in use, plus 256 times its group's number.

    A GPU with a division that is no longer allowed counts as full until it is empty."""
    if not slices or (not group and not groups):
        return slices
    number = next((places[0].number for places in groups if places[0].group == group), 0)
    return number * SLICE_STATES + slices if number else FULL


def generated(model: str) -> tuple[MigGroup, ...]:
    """Return the default MIG groups of a model, for a cluster that configures none.

    There is one group for each profile. It has as many instances of that profile as fit; smaller
    profiles, largest first, fill the rest."""
    profiles = [each for each in mig_profiles(NVIDIA, model) if not each.by_name]
    groups: list[MigGroup] = []
    for number, main in enumerate(profiles, 1):
        chosen: list[MigProfile] = []
        for profile in (main, *(p for p in reversed(profiles) if p.size < main.size)):
            while _starts([*chosen, profile]) is not None:
                chosen.append(profile)
        counts = tuple(
            MigCount(name=profile.name, memory=profile.memory_mib, count=count)
            for profile, count in Counter(chosen).items()
        )
        groups.append(MigGroup(group=f"group{number}", geometries=counts))
    return tuple(groups)


def _starts(profiles: list[MigProfile]) -> list[int] | None:
    """Return a start slice for each profile, largest first, or None if they do not all fit."""
    found: list[int] = []

    def stand(at: int, occupied: int) -> bool:
        if at == len(profiles):
            return True
        size = profiles[at].size
        for start in sorted(profiles[at].starts):
            mask = ((1 << size) - 1) << start
            if not mask & occupied:
                found.append(start)
                if stand(at + 1, occupied | mask):
                    return True
                found.pop()
        return False

    return found if stand(0, 0) else None


Geometries = tuple[MigGeometries, ...]


class FleetFacts(NamedTuple):
    """Facts about all devices of a cluster that decide how much of one device an ask needs."""

    geometries: Geometries = ()
    largest_gpu_mib: int = 0  # memory of the largest NVIDIA GPU, of any node; 0 is unknown


NO_FACTS: Final = FleetFacts()


def largest_gpu_mib(devices: Iterable[Device]) -> int:
    """Return the memory of the largest NVIDIA GPU among these devices, in MiB; 0 without any."""
    return max((each.memory_mib for each in devices if each.family == NVIDIA), default=0)


class Demand(NamedTuple):
    """The free amounts that an ask needs on a device, and what its share takes of them."""

    memory_mib: int  # the smallest of `charges`, if any
    cores_needed: int
    cores: int
    alone: bool = False  # the device must have no other share
    template_cpu: int = 0
    template: str | None = None
    profile: MigProfile | None = None  # the smallest sufficient MIG profile
    options: tuple[Place, ...] = ()  # the first free one is used
    charges: tuple[int, ...] = ()  # MiB of each option

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return the start and slice mask of every option."""
        return tuple((place.start, place.mask) for place in self.options)

    def free_places(self, slices: int, group: str, memory_mib: int) -> Iterator[tuple[Place, int]]:
        """Yield the options that fit on a GPU, each with the MiB that it takes.

        The arguments are the GPU's slices in use, their group, and the free memory. Memory can be
        short even if slices are free, as the GPU can have shares from before MIG mode."""
        for place, charge in zip(self.options, self.charges, strict=True):
            free = not place.mask & slices and (not slices or place.group == group)
            if free and charge <= memory_mib:
                yield place, charge


def demand(ask: Ask, device: Device, fleet: FleetFacts = NO_FACTS) -> Demand | RefusalCode:
    """Return what the ask needs on this type of device, or why it can never fit there."""
    if device.mode == "mig":
        return _mig(ask, device, fleet)
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
    memory_mib = memory_needed_mib(ask, device, fleet)
    if ask.cores == WHOLE and device.cores <= WHOLE:  # not with `deviceCoreScaling` above 1
        return Demand(memory_mib, device.cores, device.cores, alone=True)
    cores = ask.cores
    if cores and counts_cores(device.family):
        cores = max(device.cores * cores // WHOLE, 1)  # as in HAMi's `Fit` for AMD
    return Demand(memory_mib, max(cores, 1), cores)


def memory_needed_mib(ask: Ask, device: Device, fleet: FleetFacts = NO_FACTS) -> int:
    """Return how much memory of this device the ask needs, in MiB.

    An ask with `cap_memory` for more than the fleet's largest GPU has is capped to that amount, so
    that it does not fit on smaller GPUs."""
    if ask.memory_mib is None:
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        return device.memory_mib * percent // WHOLE
    if ask.cap_memory:
        return min(ask.memory_mib, max(fleet.largest_gpu_mib, device.memory_mib))
    return ask.memory_mib


def _whole(device: Device) -> Demand:
    cpu = template_cpu_of(device)
    return Demand(device.memory_mib, device.cores, device.cores, alone=True, template_cpu=cpu)


def _mig(ask: Ask, device: Device, fleet: FleetFacts) -> Demand | RefusalCode:
    options = _options(device, fleet)
    if ask.profile:
        fitting = [place for place in options if place.profile.name == ask.profile]
    else:
        # By memory alone: cores do not influence the choice (HAMi's `selectMigCandidate`, Volcano's
        # `TryAddPod`).
        needed_mib = _instance_needed_mib(ask, device, fleet)
        fitting = [place for place in options if place.profile.memory_mib >= needed_mib]
    whole = ask.memory_mib is None and ask.memory_percent in (None, WHOLE) and not ask.profile
    if ask.cap_memory and not ask.profile:  # capped to the memory of the device: the whole device
        whole = whole or memory_needed_mib(ask, device, fleet) == device.memory_mib
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


def _options(device: Device, fleet: FleetFacts) -> list[Place]:
    if groups := groups_of(fleet.geometries, device.family, device.model, device.mig_sizes):
        return [place for group in groups for place in group]
    profiles = mig_profiles(device.family, device.model, device.mig_sizes)
    return [place_at(profile, start) for profile in profiles for start in profile.starts]


def _instance_needed_mib(ask: Ask, device: Device, fleet: FleetFacts) -> int:
    return device.physical_memory_mib if ask.whole else memory_needed_mib(ask, device, fleet)


def largest_part(ask: Ask, device: Device, fleet: FleetFacts = NO_FACTS) -> tuple[int, int]:
    """Return the MiB that the ask needs, and the MiB of the device or its largest MIG instance.

    Both are 0 if the ask names a MIG profile."""
    if device.mode != "mig":
        return memory_needed_mib(ask, device, fleet), device.memory_mib
    if ask.profile:
        return 0, 0
    sizes = (place.profile.memory_mib for place in _options(device, fleet))
    return _instance_needed_mib(ask, device, fleet), max(sizes, default=0)


def memory_charged_mib(profile: MigProfile, device: Device) -> int:
    """Return how much of the device's free memory an instance of this profile takes, in MiB.

    If a GPU reports less memory than its profiles add up to, each profile takes less."""
    known = mig_profiles(device.family, device.model)
    slices = max(other.starts[0] + other.size for other in known)
    return min(profile.memory_mib, device.memory_mib * profile.size // slices)


def _vnpu(ask: Ask, device: Device) -> Demand | RefusalCode:
    if device.mig_sizes:  # only a part of exactly the requested size
        for size in device.mig_sizes:
            # `3g` has 3 of the device's cores, as Enflame's slices have.
            if size.profile.startswith(f"{ask.cores}g"):
                return Demand(size.memory_mib, ask.cores, ask.cores)
        return RefusalCode.MODE_MISMATCH
    memory_mib = memory_needed_mib(ask, device)
    if memory_mib > device.memory_mib:
        return RefusalCode.TEMPLATE_NONE_FITS
    # The smallest template with enough memory. More memory than any template has is a whole device,
    # and so are several devices of most families (HAMi's rule for Ascend).
    family = FAMILIES.get(device.family)
    if family is not None and (ask.count == 1 or family.alike):
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
