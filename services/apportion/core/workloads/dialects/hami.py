"""The dialect of HAMi: `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores`, `priority`.

Defaults are those of HAMi's admission webhook. Its device plugins read a placement from annotations
with one segment per container, init containers first; a segment may be empty. On GPUs in MIG mode,
a count means instances, because HAMi's `Fit` can take several instances of one GPU.

HAMi's plugin creates the instances itself. Since HAMi 2.10, it registers MIG profiles, and the
annotation `hami.io/vgpu-mig-allocations` has the position of each instance. Up to 2.9, an instance
is named by the id of its GPU, its group in `knownMigGeometries` and its position in the group, as
in `GPU-a[0-2]`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.demand import groups_of
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
    whole_number,
)
from apportion.core.workloads.dialects.inventory import (
    Entry,
    Inventory,
    NodeFacts,
    devices_of,
    entries_of,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Device, MigInstance, MigSize, Share
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import WHOLE

NAME = "hami"
TYPE = "NVIDIA"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
REGISTER = "hami.io/node-nvidia-register"
CORDON = "hami.io/device-cordon"  # annotation of a node: ids of GPUs that take no more pods
CORDONED = f"cordoned by the annotation {CORDON} of its node"
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
    device, instance = it.devices[share.device], share.instance
    name = device.id if device.mig_sizes else _named(device, instance, it.config)
    for profile in mig_profiles(device.family, device.model, device.mig_sizes):
        if profile.name == instance.profile:
            return record(name, TYPE, profile.memory_mib, profile.cores)
    return record(name, TYPE, share.memory_mib, 0)


def _named(device: Device, instance: MigInstance, config: DialectConfig) -> str:
    """Return the GPU's id with the group and position of the instance, if groups are configured."""
    for places in groups_of(config.geometries, device.family, device.model):
        if places[0].group == instance.group:
            return f"{device.id}[{places[0].number - 1}-{instance.position}]"
    return device.id


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

    def recover(pod: BoundPod, text: str) -> Iterator[Held]:
        listed = text.removesuffix(";").split(";")
        cuts: dict[tuple[int, int], tuple[str, MigInstance]] = {}
        ours = family == nvidia.FAMILY
        instances = pod.annotations.get(MIG_ALLOCATIONS, "") if ours else ""
        for each in _decode(instances) if instances else ():
            at, cut = (each.container_index, each.device_index), each.placement
            if at in cuts:
                raise Unclear  # HAMi too refuses two instances for one device of a container
            instance = MigInstance(profile=each.profile, start=cut.start, size=cut.size)
            cuts[at] = (each.gpu_uuid, instance)
        # Without the configured groups, the instances in `GPU-a[0-2]` cannot be known.
        places = ours and bool(pod.config.geometries)
        read = [list(records(each, places=places)) for each in listed]
        names = _containers_of(pod, family, [bool(each) for each in read])
        known = {(at, i) for at, each in enumerate(read) for i, _ in enumerate(each)}
        if not cuts.keys() <= known:
            raise Unclear  # instances without a segment: more is allocated than can be read
        for number, (name, segment) in enumerate(zip(names, read, strict=False)):
            for position, (written, memory, cores) in enumerate(segment):
                device, place = _place(written)
                card, made = cuts.get((number, position), ("", None))
                if card and card != device:
                    raise Unclear  # HAMi: gpuUUID must match the segment
                yield Held(name, family, device, -1, memory, cores, made, None if made else place)

    return recover


def _containers_of(pod: BoundPod, family: str, used: list[bool]) -> tuple[str, ...]:
    """Return the container of each segment; `used` says which segments have devices.

    HAMi up to 2.8 writes no segments for init containers, and HAMi 2.10 writes segments only for
    containers with devices. Raises Unclear if there are more segments than containers."""
    every = (*pod.init_containers, *pod.containers)
    asks = (*pod.asks, *pod.borrowing)
    asking = {ask.container for ask in asks if ask.family == family}
    served = tuple(name for name in every if name in asking)
    for names in (every, tuple(pod.containers), served):
        having = tuple(name for name, has in zip(names, used, strict=False) if has)
        if len(used) <= len(names) and having == served:
            return names
    found = served if len(used) == len(served) else every
    if len(used) > len(found):
        raise Unclear
    return found


def _place(written: str) -> tuple[str, tuple[str, int] | None]:
    """Split an id like `GPU-a[0-2]` into the GPU's id, and the instance's group and position."""
    device, bracket, rest = written.partition("[")
    if not bracket:
        return device, None
    group, _, position = rest.removesuffix("]").partition("-")
    if not (device and rest.endswith("]")):
        raise Unclear
    # HAMi's groups have no names; `apportion config` calls them group1, group2, and so on.
    return device, (f"group{whole_number(group) + 1}", whole_number(position))


def _registered(node: NodeFacts) -> Iterator[Device]:
    if readable(text := node.text(REGISTER)):
        entries = list(entries_of(REGISTER, text))
        node.runs(node.config.hami.count)
        cordoned = {name.strip() for name in node.text(CORDON).split(",")}

        def made(entry: Entry) -> dict[str, Any]:
            found = nvidia.registered(entry, partial(_divided, node.config))
            off = entry.health and entry.id in cordoned
            return found | (nvidia.unhealthy(CORDONED) if off else {})

        yield from devices_of(entries, nvidia.FAMILY, made)


def _divided(config: DialectConfig, model: str, entry: Entry) -> dict[str, Any]:
    """Return the fields of a GPU in MIG mode.

    It is unhealthy unless its plugin can create every instance that the scheduler may choose."""
    if not entry.mig_profiles:
        known = groups_of(config.geometries, nvidia.FAMILY, model)
        return {} if known else nvidia.unhealthy(nvidia.NO_GROUPS)
    # HAMi, too, goes by the first part of the name: 7g.79gb and 7g.80gb are the same profile.
    offered = {each.name.partition(".")[0]: each for each in entry.mig_profiles}
    sizes: list[MigSize] = []
    for profile in mig_profiles(nvidia.FAMILY, model):
        if profile.by_name:  # as large as the one before, so that no amount of memory chooses it
            sizes.append(MigSize(profile=profile.name, memory_mib=sizes[-1].memory_mib))
            continue
        found = offered.get(profile.name.partition(".")[0])
        places = {(each.start, each.size) for each in found.placements} if found else set()
        if not found or not {(start, profile.size) for start in profile.starts} <= places:
            return nvidia.unhealthy(f"its plugin does not offer the MIG profile {profile.name}")
        sizes.append(MigSize(profile=profile.name, memory_mib=found.memory_mib))
    if not sizes:
        return nvidia.unhealthy(f"the MIG profiles of {model} are unknown")
    return {"mig_sizes": tuple(sizes)}


DIALECT = MANNER.dialect(
    NAME,
    render=render,
    recover=dict.fromkeys((ALLOCATED, TO_ALLOCATE), segments_of(nvidia.FAMILY)),
    plugin=lambda _: "hami",
    locks={"hami": LOCK},
    served={TO_ALLOCATE: "", "hami.io/bind-phase": "success"},
    inventory=Inventory("hami", (REGISTER,), _registered),
    instances_alike=True,
    writes=("hami.io/",),
)
