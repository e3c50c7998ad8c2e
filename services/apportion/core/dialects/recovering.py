"""What a pod holds, read back from the annotations that its scheduler wrote for a device plugin.

The inverse of `rendering`, for pods that another scheduler placed. Some systems name devices by
their number on the node and leave amounts to the pod's asks, so the node's devices are needed to
know them. Invariant: what cannot be understood whole is not understood: half of what a pod holds
would be taken for free.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from apportion.core.devices.catalogue import FAMILIES, mig_profiles
from apportion.core.devices.demand import Demand, Known, demand, memory_charged_mib
from apportion.core.devices.geometries import generated, groups_of, laid_out
from apportion.core.dialects import cambricon, hami, volcano_vgpu
from apportion.core.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, MigInstance, Share
from apportion_schemas.quantities import WHOLE

NVIDIA = "nvidia"
TEXT_MAX = 1 << 18
DIGITS_MAX = 8
_RECORD_FIELDS = 4


class BoundPod(NamedTuple):
    """What there is to read: the pod's annotations, its containers in order, and what they ask."""

    annotations: Mapping[str, str]
    init_containers: Sequence[str]
    containers: Sequence[str]
    asks: Sequence[Ask]
    config: DialectConfig


class Held(NamedTuple):
    """One device of one container: named by its id, or else by its number on the node.

    `memory_mib` and `cores` are None where they follow from the ask. `place` is of a MIG instance
    that is named by its group and its position there, which the card's model makes slices of.
    """

    container: str
    family: str
    device: str = ""
    number: int = -1
    memory_mib: int | None = None
    cores: int | None = None
    instance: MigInstance | None = None
    place: tuple[str, int] | None = None


class Recovered(NamedTuple):
    """What a pod holds, and the annotation that says so."""

    evidence: str
    held: tuple[Held, ...]


class _Unclear(ValueError):
    """The annotation cannot be understood."""


def recover(pod: BoundPod) -> Recovered | None:
    """What the pod's annotations say that it holds; None where none of them can be understood."""
    for key, read in _readers(pod):
        text = pod.annotations.get(key, "")
        if not text or len(text) > TEXT_MAX:
            continue
        try:
            held = tuple(read(pod, text))
        except (_Unclear, msgspec.MsgspecError, LookupError):
            continue
        if held:
            return Recovered(key, held)
    return None


def shares_of(
    held: Iterable[Held], asks: Sequence[Ask], devices: Mapping[str, Device], known: Known = ()
) -> tuple[Share, ...] | None:
    """The shares, with the node's devices by id; None while one of them cannot be told.

    `known` are the ways in which cards may be cut (`knownMigGeometries`).
    """
    by_index = {(device.family, device.index): device for device in devices.values()}
    wanted = {ask.container: ask for ask in asks}
    shares = []
    for each in held:
        found = devices.get(each.device) or by_index.get((each.family, each.number))
        if found is None and not each.device:
            return None
        if each.place is not None:
            share = _placed(each, each.place, found, known)
            if share is None:
                return None
            shares.append(share)
            continue
        amounts = _amounts(each, wanted.get(each.container), found)
        if amounts is None:
            return None
        memory_mib, cores, template = amounts
        shares.append(
            Share(
                container=each.container, device=found.id if found else each.device,
                memory_mib=memory_mib, cores=cores, instance=each.instance, template=template,
            )
        )  # fmt: skip
    return tuple(shares)


def _placed(
    each: Held, place: tuple[str, int], device: Device | None, known: Known
) -> Share | None:
    """The share of an instance in a group: a configured one, or one that Volcano comes with.

    A card of which nobody says how it is cut follows no group in the ledger.
    """
    if device is None:
        return None
    configured = groups_of(known, device.family, device.model)
    groups = configured or [laid_out(group, 1, device.model) for group in generated(device.model)]
    for found in (found for group in groups for found in group):
        if (found.group, found.position) == place:
            group, position = place if configured else ("", 0)
            return Share(
                container=each.container,
                device=device.id,
                memory_mib=memory_charged_mib(found.profile, device),
                cores=0,
                instance=MigInstance(
                    profile=found.profile.name,
                    start=found.start,
                    size=found.profile.size,
                    group=group,
                    position=position,
                ),
            )
    return None


def _amounts(
    each: Held, ask: Ask | None, device: Device | None
) -> tuple[int, int, str | None] | None:
    """Memory and cores that are charged, and the template; None where nobody says."""
    memory_mib, cores, template = each.memory_mib, each.cores, None
    if memory_mib is None or cores is None:
        if ask is None or device is None:
            return None
        needed = demand(ask, device)
        if not isinstance(needed, Demand):
            return None
        return needed.memory_mib, needed.cores, needed.template
    if each.instance is not None:
        return _charged_mib(each.instance, memory_mib, device), 0, None
    family = FAMILIES.get(each.family)
    if family is not None and family.templates:
        cut = next((t for t in family.templates if t.memory_mib == memory_mib), None)
        if cut is None:  # a whole device
            return memory_mib, device.cores if device else cores, None
        return memory_mib, cut.cores, cut.name
    if cores == WHOLE and device is not None:
        cores = device.cores
    return memory_mib, cores, template


def _charged_mib(instance: MigInstance, memory_mib: int, device: Device | None) -> int:
    profiles = mig_profiles(device.family, device.model) if device else ()
    profile = next((each for each in profiles if each.name == instance.profile), None)
    return memory_charged_mib(profile, device) if profile and device else memory_mib


_Read = Callable[[BoundPod, str], Iterator[Held]]


def _readers(pod: BoundPod) -> Iterator[tuple[str, _Read]]:
    """Annotations to look at in order, with how each is read."""
    yield "hami.io/vgpu-devices-allocated", _hami(NVIDIA)
    yield "hami.io/vgpu-devices-to-allocate", _hami(NVIDIA)
    for npu in pod.config.ascend:
        yield f"hami.io/{npu.word}-devices-allocated", _hami(npu.family)
        yield f"hami.io/{npu.word}-devices-to-allocate", _hami(npu.family)
    yield "hami.io/cambricon-mlu-devices-allocated", _hami(cambricon.FAMILY)
    yield "volcano.sh/vgpu-ids-new", _volcano_vgpu
    if "volcano.sh/predicate-time" in pod.annotations:  # else the number is a wish of the user
        yield "volcano.sh/gpu-index", _volcano_share
    for names in pod.config.vcuda:
        prefix = names.cores.partition("/")[0]
        yield f"{prefix}/predicate-node", _vcuda(prefix)


def _hami(family: str) -> _Read:
    """One segment per container, init containers first, empty ones kept."""

    def read(pod: BoundPod, text: str) -> Iterator[Held]:
        names = (*pod.init_containers, *pod.containers)
        segments = text.removesuffix(";").split(";")
        if len(segments) > len(names):
            raise _Unclear
        cuts = _instances(pod.annotations.get(hami.MIG_ALLOCATIONS, ""))
        for number, (name, segment) in enumerate(zip(names, segments, strict=False)):
            for position, (device, memory, cores) in enumerate(_records(segment)):
                cut = cuts.get((number, position))
                yield Held(name, family, device, -1, memory, cores, cut)

    return read


def _volcano_vgpu(pod: BoundPod, text: str) -> Iterator[Held]:
    """One segment for each container that has a GPU; memory in units of `gpuMemoryFactor`."""
    asking = {ask.container for ask in pod.asks if not ask.init}
    names = [name for name in pod.containers if name in asking]
    segments = text.split(";")
    if len(segments) != len(names):
        raise _Unclear
    for name, segment in zip(names, segments, strict=True):
        for named, memory, cores in _records(segment, places=True):
            if volcano_vgpu.TYPE not in segment:
                raise _Unclear
            device, place = _place(named)
            memory_mib = memory * pod.config.memory_factor
            yield Held(name, NVIDIA, device, -1, memory_mib, cores, place=place)


def _place(text: str) -> tuple[str, tuple[str, int] | None]:
    """Id, group and position, as in `GPU-a[group1-0]`; of what is no MIG instance, the id."""
    device, bracket, place = text.partition("[")
    if not bracket:
        return text, None
    group, _, position = place.removesuffix("]").rpartition("-")
    if not device or not group or not place.endswith("]"):
        raise _Unclear
    return device, (group, _whole(position))


def _volcano_share(pod: BoundPod, text: str) -> Iterator[Held]:
    """The numbers of the pod's cards; which container has which follows from what they ask."""
    indexes = [_whole(number) for number in text.split(",")]
    if sum(ask.count for ask in pod.asks) == len(indexes):
        left = iter(indexes)
        for ask in pod.asks:
            for _ in range(ask.count):
                yield Held(ask.container, NVIDIA, number=next(left))
    elif len(indexes) == 1:
        for ask in pod.asks:
            yield Held(ask.container, NVIDIA, number=indexes[0])
    else:
        raise _Unclear


def _vcuda(prefix: str) -> _Read:
    """One annotation for each container, counted from 0."""

    def read(pod: BoundPod, _text: str) -> Iterator[Held]:
        for position, name in enumerate(pod.containers):
            numbers = pod.annotations.get(f"{prefix}/predicate-gpu-idx-{position}", "")
            for number in numbers.split(",") if numbers else ():
                yield Held(name, NVIDIA, number=_whole(number))

    return read


def _records(segment: str, *, places: bool = False) -> Iterator[tuple[str, int, int]]:
    """Id, memory and cores of each device, as in `GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:`.

    `places`: an instance may be named by its place in a group behind the id.
    """
    for text in segment.split(":"):
        if not text:
            continue
        parts = text.split(",")
        if len(parts) != _RECORD_FIELDS or not parts[0] or ("[" in parts[0] and not places):
            raise _Unclear
        yield parts[0], _whole(parts[2]), _whole(parts[3])


class _Cut(msgspec.Struct, frozen=True):
    start: int
    size: int


class _MigAllocation(msgspec.Struct, frozen=True, rename="camel"):
    container_index: int
    device_index: int
    profile: str
    placement: _Cut


_decode = msgspec.json.Decoder(list[_MigAllocation]).decode


def _instances(text: str) -> dict[tuple[int, int], MigInstance]:
    """MIG instances by container and device, each counted from 0."""
    return {
        (each.container_index, each.device_index): MigInstance(
            profile=each.profile, start=each.placement.start, size=each.placement.size
        )
        for each in (_decode(text) if text else ())
    }


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise _Unclear
    return int(text)
