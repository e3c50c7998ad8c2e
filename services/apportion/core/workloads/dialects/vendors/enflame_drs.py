"""The dialect of slices of Enflame GCUs, as HAMi shares them since 2.10: `enflame.com/drs-gcu`.

The amount is the size of one slice, and a container gets one slice. A node lists its profiles, such
as `3g.20gb`: 3 of a GCU's parts, with 20 GiB. A slice needs a profile of exactly its size there.
Requests for `gcu-memory` or `gcu-core` are refused, because their profile, and even the unit of
memory, depend on the node. HAMi allocates at most 100 percent of rounded cores, so only five slices
of one sixth. Apportion allocates as many slices of a GCU as its parts allow."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from apportion.core.workloads.dialects import hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    CORES,
    Bound,
    BoundPod,
    Held,
    PlacedPod,
    Resource,
    Selecting,
    record,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import (
    SLOTS_MAX,
    Entry,
    Inventory,
    NodeFacts,
    Unread,
    decoded,
    devices_of,
    number,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, Share
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import WHOLE

REGISTER: Final = "enflame.com/gcu-drs-capacity"
ASSIGNED: Final = "assigned-containers"
_SIZE: Final = re.compile(r"([1-9]\d?)g\.([1-9]\d{0,3})gb", re.ASCII)
_INDEX: Final = re.compile(r"\d{1,3}", re.ASCII)
_ID: Final = re.compile(r".+-enflame-drs-\d+")
DRS = HamiDevice(
    family="enflame-drs",
    devices="GCU slices",
    names=Names("enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"),
    word="enflame-vgpu",
    type="Enflame",
    selecting=Selecting(
        use_ids=("enflame.com/use-gpuuuid",), nouse_ids=("enflame.com/nouse-gpuuuid",)
    ),
    to_allocate=False,
)
_RESOURCES = {name: Resource((DRS.family,)) for name in DRS.names} | {
    DRS.names.number: Resource((DRS.family,), Bound(CORES, DRS.family))
}
_encode = msgspec.json.Encoder(order="sorted").encode


class _Gcu(Struct, frozen=True):
    capacity: int | str
    index: str = ""
    minor: str = ""


class _Registered(Struct, frozen=True):
    devices: list[_Gcu] = []
    profiles: Mapping[str, str] = {}  # name to id


class _Assigned(Struct, frozen=True):
    request: Annotated[int, Meta(ge=1, lt=WHOLE)]


_decode = from_outside(msgspec.json.Decoder(_Registered).decode)
_decode_assigned = from_outside(msgspec.json.Decoder(dict[str, _Assigned]).decode)


class _Profile(NamedTuple):
    """A DRS profile of a GCU: its size, name and id, and the GCU's minor number."""

    size: int
    name: str
    id: str
    minor: str


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    size, *others = (amounts.get(name) for name in DRS.names)
    for other in filter(None, others):
        fix = f"write {DRS.names.number}: 3 for a profile such as 3g.20gb"
        raise other.refusal("is not supported, because its profile depends on the node", fix)
    if size is None:
        return None
    if not 1 <= size.value < WHOLE:
        raise size.refusal("is not the size of a slice", "write 3 for a profile such as 3g.20gb")
    return container.ask(DRS.family, cores=size.value)


def _profiles(device: Device) -> list[_Profile]:
    """Return the profiles that `_offered` encoded in the names of the device's `mig_sizes`."""
    return [
        _Profile(int(name.partition("g")[0]), name, key, minor)
        for each in device.mig_sizes
        for name, key, minor in [each.profile.split("/", 2)]
    ]


def _record(it: PlacedPod, share: Share) -> str:
    largest = max((each.size for each in _profiles(it.devices[share.device])), default=share.cores)
    percent = -(-share.cores * WHOLE // largest)  # rounded up, as HAMi's `collectDRSProfiles`
    return record(share.device, DRS.type, share.memory_mib, percent)


def _render(it: PlacedPod) -> dict[str, str]:
    chosen: list[tuple[Share, _Profile]] = []
    for share in DRS.shares(it):
        known = (each for each in _profiles(it.devices[share.device]) if each.size == share.cores)
        lost = _Profile(share.cores, f"{share.cores}g", "", "")  # the node no longer has it
        chosen.append((share, next(known, lost)))
    first, profile = chosen[0]
    assigned = {
        share.container: {
            "allocated": False,
            "request": each.size,
            "profileID": each.id,
            "profileName": each.name,
        }
        for share, each in chosen
    }
    index = str(it.index_of(first))
    return DRS.allocated(it, partial(_record, it)) | {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": str(it.now_ns),
        "enflame.com/gcu-assigned-index": index,
        "enflame.com/gcu-assigned-id": index,
        "enflame.com/gcu-assigned-minor": profile.minor,
        "enflame.com/gcu-request-size": str(first.cores),
        ASSIGNED: _encode(assigned).decode(),
    }


def recover(pod: BoundPod, text: str) -> Iterator[Held]:
    """Yield the slices or vGCUs of a pod: HAMi 2.10 and older versions use the same annotation.

    The annotation has the percent of a slice, but not its size. If the container does not request a
    size, it is in `ASSIGNED`, which Enflame's plugin rewrites."""
    sizes = {ask.container: ask.cores for ask in pod.asks if ask.family == DRS.family}
    for held in hami.segments_of(DRS.family)(pod, text):
        if _ID.fullmatch(held.device):
            size = sizes.get(held.container)
            if size is None:
                size = _decode_assigned(pod.annotations[ASSIGNED])[held.container].request
            yield held._replace(cores=size)
        else:  # the cores of a vGCU are in its container's request
            yield held._replace(family="enflame-vgcu", memory_mib=None, cores=None)


def _offered(node: NodeFacts) -> Iterator[Device]:
    if not readable(text := node.text(REGISTER)):
        return
    found = decoded(_decode, REGISTER, text)
    sizes = sorted(
        (int(match[1]), int(match[2]) << 10, name, key)
        for name, key in found.profiles.items()
        if (match := _SIZE.fullmatch(name)) and "/" not in key
    )
    if not sizes:
        raise Unread(f"{REGISTER} has no profile such as 3g.20gb")
    node.runs(DRS.names.number)
    entries = []
    for at, gcu in enumerate(found.devices):
        index = int(gcu.index) if _INDEX.fullmatch(gcu.index) else at
        capacity = number(str(gcu.capacity))
        if not 0 < capacity <= SLOTS_MAX:
            raise Unread(f"{REGISTER} has a capacity of {capacity} for device {index}")
        kept = [(mib, f"{name}/{key}/{gcu.minor.strip() or index}") for _, mib, name, key in sizes]
        entries.append(
            Entry(
                f"{node.name}-enflame-drs-{index}", index, capacity, max(kept)[0], capacity,
                DRS.type, 0, health=True,
                custominfo={
                    "mig_sizes": [{"profile": name, "memory_mib": mib} for mib, name in kept]
                },
            )
        )  # fmt: skip
    yield from devices_of(entries, DRS.family, lambda each: each.custominfo, mode="vnpu")


DIALECT = DRS.dialect(
    "enflame-drs",
    resources=lambda _: _RESOURCES,
    read=_read,
    render=_render,
    recover={DRS.allocated_key: recover},
    needs={},
    inventory=Inventory("hami", (REGISTER,), _offered),
    locks={},
    writes=(ASSIGNED, "enflame.com/gcu-"),
)
