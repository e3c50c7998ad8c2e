"""Find, create and destroy the MIG instances of one GPU through NVML.

A share gets a GPU instance at the slices in the ledger, with one compute instance that has all of
its compute. Users and mig-manager create instances too, so the agent records its own in
`OurInstances`, before it creates them. Records of an earlier boot are ignored: no instance survives
a reboot.

Invariants: the agent gives to containers, and destroys, only its own instances. It never destroys
an instance that is needed or in use. Every call can be repeated after a crash."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes import Array, byref, c_uint
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import pynvml as nvml

from apportion.agent.backend import InTheWay, Kept, NotMade
from apportion.agent.boot_book import BootBook
from apportion.core.devices.demand import FULL
from apportion.core.grants import DeviceNode, MadeInstance
from apportion.core.grants.mig import named, overlap
from apportion_schemas import MigInstance

# Lines such as `gpu0/gi1/ci0/access 13`: the minor number of an instance's device node.
CAPABILITIES = Path("/proc/driver/nvidia-caps/mig-minors")
DEVICES = Path("/proc/devices")
_MAJOR = 195  # of NVIDIA's GPUs, see Documentation/admin-guide/devices.txt of Linux
_AT_MOST = 32
# The driver's answer about a profile or an instance that a GPU does not have.
_ABSENT = (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound)


class Profile(NamedTuple):
    """A MIG profile (the size of an instance), with the driver's id for the profile."""

    id: int
    slices: int
    memory_mib: int
    # The driver's memory slices in one slice of the device catalogue. Drivers count the memory of
    # an RTX PRO 6000 in twelfths, and no instance has less than three of them.
    unit: int = 1


class OurInstances:
    """The MIG instances that this agent created.

    Without a `book`, the record is lost when the agent restarts."""

    def __init__(self, book: BootBook[MigInstance] | None = None) -> None:
        self._book = book
        self._made = {} if book is None else dict(book.entries)

    @property
    def kept(self) -> bool:
        """Return True if the record survives a restart of the agent."""
        return self._book is not None

    def made(self, card: str, cut: MigInstance) -> bool:
        """Return True if this agent made the instance."""
        return self._made.get(_name(card, cut)) == cut

    def note(self, card: str, cut: MigInstance) -> None:
        """Record that this agent is about to make the instance. Raises OSError."""
        if self._book is not None:
            self._book.note(_name(card, cut), cut)
        self._made[_name(card, cut)] = cut

    def strike(self, card: str, cut: MigInstance) -> None:
        """Record that the instance no longer exists. Raises OSError."""
        if self._book is not None:
            self._book.strike(_name(card, cut))
        self._made.pop(_name(card, cut), None)

    def of(self, card: str) -> list[MigInstance]:
        """Return the GPU's instances that this agent recorded as its own."""
        return [cut for name, cut in list(self._made.items()) if name.startswith(f"{card}/")]


def _name(card: str, cut: MigInstance) -> str:
    return f"{card}/{cut.profile}/{cut.start}"


class Cut(NamedTuple):
    """A GPU in MIG mode: its id, its NVML handle, and the instances that this agent made."""

    id: str
    handle: Any
    ours: OurInstances


class Made(NamedTuple):
    """A MIG GPU instance that exists now, with the driver's data about the instance."""

    handle: Any
    id: int
    slices: int
    cut: MigInstance


def ensure(
    card: Cut, wanted: MigInstance, needed: Collection[MigInstance], *, least_mib: int = 0
) -> MadeInstance:
    """Make the instance; implements `DeviceBackend.make_instance`, with the same errors."""
    try:
        known = profiles(card.handle)
        if wanted.profile not in known:
            raise NotMade(
                f"the GPU has no MIG profile {wanted.profile}; available: "
                f"{', '.join(known) or 'none (is it in MIG mode?)'}"
            )
        if (memory_mib := known[wanted.profile].memory_mib) < least_mib:
            raise NotMade(
                f"with this driver, MIG instances {wanted.profile} have {memory_mib} MiB, but the "
                f"ledger allocates {least_mib} MiB to this one"
            )
        there = list(instances(card.handle, known))
        made = next((each for each in there if each.cut == wanted), None)
        if made is None or not card.ours.made(card.id, wanted):
            _clear(card, there, wanted, needed)
            profile = known[wanted.profile]
            unit = profile.unit
            at = nvml.c_nvmlGpuInstancePlacement_t(wanted.start * unit, wanted.size * unit)
            card.ours.note(card.id, wanted)
            try:
                nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card.handle, profile.id, byref(at))
            except nvml.NVMLError:
                card.ours.strike(card.id, wanted)  # what is there now was made by another program
                raise
            made = next(each for each in instances(card.handle, known) if each.cut == wanted)
        compute = _compute(made)
        return MadeInstance(
            _device_id(card.handle, made, compute), _nodes(card.handle, made, compute)
        )
    except nvml.NVMLError as error:
        raise NotMade(f"cannot create MIG instance {named(wanted)}: {error}") from None


def keep(card: Cut, needed: Collection[MigInstance]) -> Kept:
    """Destroy this agent's instances that nothing needs or uses. Raises NVMLError, OSError."""
    gone, held, foreign, there = [], [], [], []
    for made in list(instances(card.handle, profiles(card.handle))):
        there.append(made.cut)
        if not card.ours.made(card.id, made.cut):
            foreign.append(made.cut)
        elif made.cut not in needed:
            try:
                _destroy(made)
            except nvml.NVMLError_InUse:
                held.append(made.cut)
            else:
                gone.append(made.cut)
                card.ours.strike(card.id, made.cut)
    for cut in card.ours.of(card.id):
        if cut not in there:  # a user destroyed it, or the driver was reloaded
            card.ours.strike(card.id, cut)
    return Kept(tuple(gone), tuple(held), tuple(foreign))


def slices(cut: MigInstance) -> int:
    """Return an instance's slices as a bit mask, without bits outside `FULL`."""
    return ((1 << cut.size) - 1) << cut.start & FULL


def profiles(card: Any) -> dict[str, Profile]:
    """Return the GPU's MIG profiles by name, such as `1g.5gb`. Raises NVMLError."""
    found = {}
    for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(*_ABSENT):
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, kind)
            name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
            found[name.removeprefix("MIG ")] = Profile(
                int(info.id), int(info.sliceCount), int(info.memorySizeMB)
            )
    unit = gcd(*(bound for each in found.values() for bound in _bounds(card, each.id))) or 1
    return {name: each._replace(unit=unit) for name, each in found.items()}


def _bounds(card: Any, number: int) -> Iterator[int]:
    with suppress(*_ABSENT):
        count = c_uint()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, number, None, byref(count))
        found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, number, found, byref(count))
        for at in _first(found, count):
            yield from (int(at.start), int(at.size))


def instances(card: Any, known: Mapping[str, Profile]) -> Iterator[Made]:
    """Yield the MIG instances that exist on the GPU now. Raises NVMLError."""
    for name, profile in known.items():
        found, count = (nvml.c_nvmlGpuInstance_t * _AT_MOST)(), c_uint()
        with suppress(*_ABSENT):
            nvml.nvmlDeviceGetGpuInstances(card, profile.id, found, byref(count))
        for handle in _first(found, count):
            info = nvml.nvmlGpuInstanceGetInfo(handle)
            at = info.placement
            start, size = int(at.start) // profile.unit, int(at.size) // profile.unit
            cut = MigInstance(profile=name, start=start, size=size)
            yield Made(handle, int(info.id), profile.slices, cut)


def numbered(card: Any, number: int) -> MigInstance | None:
    """Return the MIG instance whose GPU instance id is `number`, or None. Raises NVMLError."""
    there = instances(card, profiles(card))
    return next((made.cut for made in there if made.id == number), None)


def _clear(
    card: Cut, there: Iterable[Made], wanted: MigInstance, needed: Collection[MigInstance]
) -> None:
    in_the_way = [made for made in there if overlap(made.cut, wanted)]
    for made in in_the_way:
        if not card.ours.made(card.id, made.cut):
            raise NotMade(
                f"MIG instance {named(made.cut)} (GPU instance {made.id}), not created by "
                f"Apportion, occupies slices of {named(wanted)}; if it is unused, destroy it "
                "with nvidia-smi mig -dci and -dgi"
            )
    for made in in_the_way:
        why = f"{named(made.cut)} occupies slices of {named(wanted)}"
        if made.cut in needed:
            raise InTheWay(f"{why}, and is still allocated to another container on this node")
        try:
            _destroy(made)
        except nvml.NVMLError_InUse:
            raise InTheWay(f"{why}, and a process or DCGM still uses it; see nvidia-smi") from None
        card.ours.strike(card.id, made.cut)


def _destroy(made: Made) -> None:
    for compute in _computes(made):
        nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(made.handle)


def _computes(made: Made) -> list[Any]:
    every: list[Any] = []
    for kind, _ in _compute_profiles(made):
        found, count = (nvml.c_nvmlComputeInstance_t * _AT_MOST)(), c_uint()
        nvml.nvmlGpuInstanceGetComputeInstances(made.handle, kind, found, byref(count))
        every += _first(found, count)
    return every


def _compute_profiles(made: Made) -> Iterator[tuple[int, int]]:
    for kind in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with suppress(*_ABSENT):
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                made.handle, kind, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
            yield int(info.id), int(info.sliceCount)


def _compute(made: Made) -> int:
    whole = {number for number, slices in _compute_profiles(made) if slices == made.slices}
    there = _computes(made)
    infos = [nvml.nvmlComputeInstanceGetInfo_v2(each) for each in there]
    if len(infos) == 1 and infos[0].profileId in whole:
        return int(infos[0].id)
    for each in there:  # an agent was killed between two steps, or a user made it by hand
        nvml.nvmlComputeInstanceDestroy(each)
    one = nvml.nvmlGpuInstanceCreateComputeInstance(made.handle, min(whole))
    return int(nvml.nvmlComputeInstanceGetInfo_v2(one).id)


def _device_id(card: Any, made: Made, compute: int) -> str:
    for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(card))):
        with suppress(nvml.NVMLError_NotFound):
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
            instance = nvml.nvmlDeviceGetGpuInstanceId(device)
            if (instance, nvml.nvmlDeviceGetComputeInstanceId(device)) == (made.id, compute):
                return str(nvml.nvmlDeviceGetUUID(device))
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _nodes(card: Any, made: Made, compute: int) -> tuple[DeviceNode, ...]:
    minors = dict(_pairs(CAPABILITIES))
    majors = [int(number) for number, name in _pairs(DEVICES) if name == "nvidia-caps"]
    if not minors or not majors:
        return ()
    gpu = int(nvml.nvmlDeviceGetMinorNumber(card))
    names = (f"gpu{gpu}/gi{made.id}/access", f"gpu{gpu}/gi{made.id}/ci{compute}/access")
    lets = [int(minors[name]) for name in names if name in minors]
    return (
        DeviceNode(f"/dev/nvidia{gpu}", _MAJOR, gpu),
        *(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{each}", majors[0], each) for each in lets),
    )


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            first, _, second = line.strip().partition(" ")
            if second:
                yield first, second.strip()


def _first(found: Array[Any], count: c_uint) -> list[Any]:
    return list(found[: count.value])
