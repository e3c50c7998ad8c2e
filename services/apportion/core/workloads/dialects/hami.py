"""The dialect of HAMi: `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores`, `priority`.

Defaults are those of HAMi's admission webhook. Its device plugins read a placement from annotations
with one segment per container, init containers first; a segment may be empty. On GPUs in MIG mode,
a count means instances, not GPUs, because HAMi can choose the same GPU again (`Fit`)."""

from collections.abc import Iterator
from functools import partial

import msgspec

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.workloads.dialects import nvidia
from apportion.core.workloads.dialects.dialect import (
    BoundPod,
    Held,
    Lock,
    PlacedPod,
    Recover,
    Unclear,
    record,
    records,
    segments,
)
from apportion.core.workloads.dialects.inventory import (
    Inventory,
    NodeFacts,
    devices_of,
    entries_of,
    readable,
)
from apportion_schemas import Device, MigInstance, Share
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import WHOLE

NAME = "hami"
TYPE = "NVIDIA"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
REGISTER = "hami.io/node-nvidia-register"
LOCK = Lock("hami.io/mutex.lock")
# source: `GenerateResourceRequests` and `Fit` of HAMi's NVIDIA device
MANNER = nvidia.Manner(
    names=lambda config: config.hami,
    system="HAMi",
    cap_memory=False,
    percentage_first=False,
    zero_is_unset=True,
    clamp_cores=True,
    full_percentage_is_alone=True,
)
_encode = msgspec.json.Encoder().encode


def render(it: PlacedPod) -> dict[str, str]:
    """Return the annotations that HAMi's scheduler writes for this placement."""
    text = segments(it, partial(_record, it))
    instances = [
        {
            "containerIndex": container,
            "deviceIndex": position,
            "gpuUUID": share.device,
            "profile": share.instance.profile,
            "placement": {"start": share.instance.start, "size": share.instance.size},
        }
        for container, name in enumerate((*it.init_containers, *it.containers))
        for position, share in enumerate(it.shares(name))
        if share.instance is not None and it.devices[share.device].family == nvidia.FAMILY
    ]
    return {
        TO_ALLOCATE: text,
        ALLOCATED: text,
        **bound(it),
        **({MIG_ALLOCATIONS: _encode(instances).decode()} if instances else {}),
    }


def bound(it: PlacedPod) -> dict[str, str]:
    """Return the annotations that HAMi writes for any kind of device: the node, and the time."""
    return {
        "hami.io/vgpu-node": it.placed.node,
        "hami.io/vgpu-time": it.seconds,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": it.seconds,
    }


def _record(it: PlacedPod, share: Share) -> str:
    if it.devices[share.device].family != nvidia.FAMILY:
        return ""  # another vendor's annotation has it
    if share.instance is None:
        return record(share.device, TYPE, share.memory_mib, min(share.cores, WHOLE))
    device = it.devices[share.device]
    for profile in mig_profiles(device.family, device.model, device.mig_sizes):
        if profile.name == share.instance.profile:
            return record(share.device, TYPE, profile.memory_mib, profile.cores)
    return record(share.device, TYPE, share.memory_mib, 0)


class _Cut(msgspec.Struct, frozen=True):
    start: int
    size: int


class _MigAllocation(msgspec.Struct, frozen=True, rename="camel"):
    container_index: int
    device_index: int
    profile: str
    placement: _Cut
    gpu_uuid: str = msgspec.field(name="gpuUUID", default="")


_decode = from_outside(msgspec.json.Decoder(list[_MigAllocation]).decode)


def segments_of(family: str) -> Recover:
    """Return a function that reads the devices of this family from HAMi's pod annotations."""

    def read(pod: BoundPod, text: str) -> Iterator[Held]:
        names = (*pod.init_containers, *pod.containers)
        listed = text.removesuffix(";").split(";")
        if len(listed) > len(names):
            raise Unclear
        cuts: dict[tuple[int, int], tuple[str, MigInstance]] = {}
        ours = family == nvidia.FAMILY
        instances = pod.annotations.get(MIG_ALLOCATIONS, "") if ours else ""
        for each in _decode(instances) if instances else ():
            place, cut = (each.container_index, each.device_index), each.placement
            if place in cuts:
                raise Unclear  # HAMi too refuses two instances for one device of a container
            instance = MigInstance(profile=each.profile, start=cut.start, size=cut.size)
            cuts[place] = (each.gpu_uuid, instance)
        known = {(at, i) for at, each in enumerate(listed) for i, _ in enumerate(records(each))}
        if not cuts.keys() <= known:
            raise Unclear  # instances without a segment: more is allocated than can be read
        for number, (name, segment) in enumerate(zip(names, listed, strict=False)):
            for position, (device, memory, cores) in enumerate(records(segment)):
                card, made = cuts.get((number, position), ("", None))
                if card and card != device:
                    raise Unclear  # HAMi: gpuUUID must match the segment
                yield Held(name, family, device, -1, memory, cores, made)

    return read


def _registered(node: NodeFacts) -> Iterator[Device]:
    if readable(text := node.text(REGISTER)):
        entries = list(entries_of(REGISTER, text))
        node.runs(node.config.hami.count)
        yield from devices_of(entries, nvidia.FAMILY, nvidia.registered)


DIALECT = MANNER.dialect(
    NAME,
    render=render,
    recover=dict.fromkeys((ALLOCATED, TO_ALLOCATE), segments_of(nvidia.FAMILY)),
    plugin=lambda _: "hami",
    locks={"hami": LOCK},
    inventory=Inventory("hami", (REGISTER,), _registered),
    instances_alike=True,
    writes=("hami.io/",),
)
