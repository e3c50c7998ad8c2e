"""The dialects of Enflame GCUs: whole (`enflame.com/gcu`), or shared by HAMi up to 2.9 (vGCU).

The rules are those of HAMi's Enflame devices; the rules for slices are in `enflame_drs`. A
container requests one `enflame.com/vgcu` and `vgcu-percentage` of its memory, by default 100. The
kubelet counts slices as `shared-gcu`. HAMi's webhook computes them from the last node that it read;
here the container must request them, because their number per GCU depends on the node. Several
vGCUs are whole GCUs. HAMi counts the memory of any GCU as 100."""

from collections.abc import Iterator
from functools import partial

from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    CORES,
    DEVICE_MEMORY,
    SHARES,
    Bound,
    PlacedPod,
    Resource,
    commas,
    record,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import (
    Inventory,
    NodeFacts,
    Unread,
    alike,
    devices_of,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.vendors import enflame_drs
from apportion.core.workloads.dialects.vendors.enflame_drs import DRS
from apportion_schemas import Ask, Device
from apportion_schemas.quantities import WHOLE

CARDS = "enflame.com/gcu-count"  # of a node
SLICES = "enflame.com/shared-gcu"
GCU = HamiDevice(
    family="enflame-gcu",
    devices="GCUs",
    names=Names("enflame.com/gcu"),
    word="enflame-gcu",
    type="GCU",
)
VGCU = HamiDevice(
    family="enflame-vgcu",
    devices="vGCUs",
    names=Names("enflame.com/vgcu", "enflame.com/vgcu-percentage"),
    word=DRS.word,
    type=DRS.type,
    selecting=DRS.selecting,
    to_allocate=False,
)
RESOURCES = {
    VGCU.names.number: Resource((VGCU.family,), Bound(SHARES, VGCU.family)),
    VGCU.names.memory: Resource((VGCU.family,), Bound(DEVICE_MEMORY, VGCU.family)),
    SLICES: Resource((VGCU.family,), Bound(CORES, VGCU.family)),
}


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, percentage = (amounts.get(name) for name in (VGCU.names.number, VGCU.names.memory))
    slices = amounts.get(SLICES)
    if count is None or count.value == 0:
        if slices and slices.value:
            fix = f"add {VGCU.names.number}: 1, or request {GCU.names.number}"
            raise slices.refusal("is requested without a number of vGCUs", fix)
        return None
    devices = count.devices()
    percent = percentage.memory_percent() if percentage else WHOLE
    if percentage and devices > 1 and percent < WHOLE:
        fix = f"remove it, or set {VGCU.names.number} to 1"
        raise percentage.refusal(
            f"requests part of a GCU, but {devices} vGCUs can only be whole ones", fix
        )
    if slices is None or not slices.value:
        raise count.refusal(
            f"is requested without {SLICES}, which the kubelet counts",
            f"add {SLICES}: {percent * devices} % of the slices of one GCU, rounded up",
        )
    each, rest = divmod(slices.value, devices)
    if rest or each >= WHOLE:
        problem = f"does not give each of {devices} vGCUs the same number of slices, below {WHOLE}"
        raise slices.refusal(problem, "write the number of vGCUs times the slices of each")
    return container.ask(VGCU.family, count=devices, memory_percent=percent, cores=each)


def _render(it: PlacedPod) -> dict[str, str]:
    shares = VGCU.shares(it)
    named = [s for s in shares if s.container == shares[0].container]
    return VGCU.allocated(it, lambda s: record(s.device, VGCU.type, s.memory_mib, 0)) | {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": str(it.now_ns),
        "enflame.com/gcu-assigned-id": commas(map(it.index_of, named)),
    }


def _shared(node: NodeFacts) -> Iterator[Device]:
    cards, slices = node.counted(CARDS), node.counted(SLICES)
    if not cards or readable(node.text(enflame_drs.REGISTER)):
        return  # as HAMi 2.10, which shares GCUs only by slices
    if not slices // cards:
        raise Unread(f"the kubelet reports {cards} {CARDS}, but {slices} {SLICES}")
    found = alike(node, cards, "enflame", devmem=WHOLE, count=WHOLE, type=VGCU.type)
    yield from devices_of(found, VGCU.family, cores=slices // cards)


DIALECTS = (
    GCU.dialect(
        "enflame-gcu",
        inventory=GCU.in_numbers(
            GCU.type,
            WHOLE,
            shared=lambda node: (
                enflame_drs.REGISTER in node.annotations or node.allocatable.get(SLICES)
            ),
        ),
        locks={},
        sections={
            "enflame": partial(
                GCU.check_section,
                {
                    "resourceNameGCU": GCU.names.number,
                    "resourceNameDRSGCU": DRS.names.number,
                    "resourceNameGCUMemory": DRS.names.memory,
                    "resourceNameGCUCore": DRS.names.cores,
                    "resourceNameVGCU": VGCU.names.number,
                    "resourceNameVGCUPercentage": VGCU.names.memory,
                    "resourceCountName": VGCU.names.number,
                    "resourcePercentageName": VGCU.names.memory,
                },
            )
        },
    ),
    enflame_drs.DIALECT,
    VGCU.dialect(
        "enflame-vgcu",
        resources=lambda _: RESOURCES,
        read=_read,
        render=_render,
        recover={VGCU.allocated_key: enflame_drs.recover},
        inventory=Inventory("hami", (CARDS,), _shared),
        locks={},
    ),
)
