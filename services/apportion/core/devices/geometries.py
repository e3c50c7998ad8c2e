"""The groups of MIG instances that a GPU may be cut into (`knownMigGeometries`).

A group is laid out once and each of its instances has its own slices, so a GPU bound to the group
can have any subset, and no order of arrivals fragments it. Invariant: the places of one group never
overlap."""

import re
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from apportion.core.devices.catalogue import MigProfile, mig_profiles, normal, sized
from apportion_schemas import MigSize
from apportion_schemas.configuration import MigCount, MigGeometries, MigGroup

NVIDIA = "nvidia"
SLICE_STATES = 256  # number of masks of a GPU's eight memory slices
FULL = SLICE_STATES - 1
_NAME = re.compile(r"(?P<compute>\d+g)\.(?P<gigabytes>\d+)gb")


class Place(NamedTuple):
    """A possible MIG instance: its profile, its first slice and the mask of its slices.

    In a group, `number` counts the model's groups from 1 and `position` the group's instances from
    0, in the order in which they are written, as in Volcano. A GPU that is cut freely has places
    without a group."""

    profile: MigProfile
    start: int
    mask: int
    group: str = ""
    number: int = 0
    position: int = 0


class Unlaid(ValueError):
    """A group that no GPU of the model can be cut into; the message says why."""


Groups = tuple[tuple[Place, ...], ...]


@lru_cache(maxsize=256)
def groups_of(
    known: tuple[MigGeometries, ...], family: str, model: str, sizes: tuple[MigSize, ...] = ()
) -> Groups:
    """Return the groups that GPUs of this model may be cut into; empty if none are set.

    `sizes` are those that the device reports (`Device.mig_sizes`). Raises Unlaid if a group cannot
    be laid out, or names a profile that the model lacks."""
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
    """Return the places of a group, in the order of their positions. Raises Unlaid."""
    wanted: list[MigProfile] = []
    for entry in group.geometries:
        known = sized(_profile(entry.name, model), sizes)
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
    """Return the instance of this profile at slice `start`, without a group."""
    return Place(profile, start, ((1 << profile.size) - 1) << start)


def cut_state(slices: int, group: str, groups: Groups) -> int:
    """Encode how a GPU is cut: its slices in use, plus 256 times its group's number.

    A GPU that is cut in a way no longer allowed counts as full until it is empty."""
    if not slices or (not group and not groups):
        return slices
    number = next((places[0].number for places in groups if places[0].group == group), 0)
    return number * SLICE_STATES + slices if number else FULL


def generated(model: str) -> tuple[MigGroup, ...]:
    """Return default groups for a model without any.

    Each has as many instances of one profile as fit, and the largest that fit next to them."""
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


def _profile(name: str, model: str) -> MigProfile:
    # Drivers round the gigabytes differently: 7g.79gb is 7g.80gb. Other memory makes it another
    # profile, and so does a suffix for other engines (`+me`, `-me`, `+gfx`, `+me.all`).
    profiles = mig_profiles(NVIDIA, model)
    exact = [profile for profile in profiles if profile.name == name]
    alike = exact or [profile for profile in profiles if _renamed(name, profile.name)]
    if len(alike) != 1:
        known = ", ".join(profile.name for profile in profiles) or "none"
        raise Unlaid(f"{model} has no MIG profile {name}; it has {known}")
    return structs.replace(alike[0], name=name)


def _renamed(name: str, known: str) -> bool:
    found, other = _NAME.fullmatch(name), _NAME.fullmatch(known)
    if not found or not other or found["compute"] != other["compute"]:
        return False
    wanted_gb, known_gb = int(found["gigabytes"]), int(other["gigabytes"])
    return abs(wanted_gb - known_gb) * 5 <= known_gb


def _starts(profiles: list[MigProfile]) -> list[int] | None:
    """Return starts at which all profiles, largest first, fit together, or None."""
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
