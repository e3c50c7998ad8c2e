"""The dialects of Kunlunxin XPUs: whole ones (`kunlunxin.com/xpu`), and shared ones (`vxpu`).

The rules are those of HAMi's Kunlun devices. A pod gets 1, 2, 4 or 8 XPUs. Several are a linked set
(see the catalogue). HAMi prefers the half of the node with the fewest free XPUs; Apportion takes
the first free set. The vendor's plugin only counts whole XPUs, so HAMi makes up their ids. The
annotation for the plugin has the indexes of one container, the last. `vxpu-memory` is in MiB per
XPU, rounded up to a size of the catalogue; without it, or above the largest size, a pod gets whole
XPUs. All shares of an XPU have one size."""

from collections.abc import Iterator

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects import hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    DEVICE_MEMORY,
    SHARES,
    Bound,
    PlacedPod,
    Resource,
    Selecting,
    commas,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import (
    WHOLE_ONLY,
    Inventory,
    NodeFacts,
    alike,
    devices_of,
    in_annotation,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device
from apportion_schemas.quantities import WHOLE

SELECTING = Selecting(
    use_ids=("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"),
    nouse_ids=("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
)
XPU = HamiDevice(
    family="kunlun",
    devices="XPUs",
    names=Names("kunlunxin.com/xpu"),
    word="kunlun",
    type="kunlun",
    selecting=SELECTING,
    to_allocate=False,
)
VXPU = HamiDevice(
    family="kunlun-vxpu",
    devices="vXPUs",
    names=Names("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"),
    word="xpu",
    type="XPU",
    selecting=SELECTING,
)
ALLOCATED = "hami.io/kunlun-allocated"
REGISTER = "hami.io/node-register-xpu"
SIZES_MIB = tuple(template.memory_mib for template in FAMILIES[VXPU.family].templates)
RESOURCES = {
    VXPU.names.number: Resource((VXPU.family,), Bound(SHARES, VXPU.family)),
    VXPU.names.memory: Resource((VXPU.family,), Bound(DEVICE_MEMORY, VXPU.family)),
}


def _render(it: PlacedPod) -> dict[str, str]:
    notes = XPU.allocated(it)
    notes[ALLOCATED] = notes.pop(XPU.allocated_key)
    last = XPU.shares(it)[-1].container
    indexes = [it.index_of(share) for share in XPU.shares(it) if share.container == last]
    return notes | {"BAIDU_COM_DEVICE_IDX": commas(indexes)}


def _offered(node: NodeFacts) -> Iterator[Device]:
    number = node.counted(XPU.names.number)
    if readable(node.text(REGISTER)) or not number:
        return  # the other plugin shares them, or there are none
    node.allowed(XPU.names.number)
    memory = FAMILIES[XPU.family].printed_mib
    found = alike(node, number, XPU.word, devmem=memory, type=XPU.type)
    yield from devices_of(
        found, XPU.family, lambda xpu: {"numa": int(xpu.index >= number // 2)}, **WHOLE_ONLY
    )


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory = amounts.get(VXPU.names.number), amounts.get(VXPU.names.memory)
    if count is None or count.value == 0:
        return None
    wanted = None if memory is None else memory.memory_mib(1) or 0
    sizes = [size for size in SIZES_MIB if wanted is not None and wanted <= size]
    return container.ask(
        VXPU.family,
        count=count.devices(VXPU.family),
        memory_mib=sizes[0] if sizes else None,
        cores=0 if sizes else WHOLE,
    )


DIALECTS = (
    XPU.dialect(
        "kunlun",
        section={
            "resourceCountName": XPU.names.number,
            "resourceVCountName": VXPU.names.number,
            "resourceVMemoryName": VXPU.names.memory,
        },
        render=_render,
        recover={ALLOCATED: hami.segments_of(XPU.family)},
        inventory=Inventory("vendor", (XPU.names.number,), _offered),
        locks={},
    ),
    VXPU.dialect(
        "kunlun-vxpu",
        resources=lambda _: RESOURCES,
        read=_read,
        inventory=in_annotation(
            REGISTER,
            VXPU.family,
            VXPU.names.number,
            lambda xpu: {"slots": max(xpu.devmem // SIZES_MIB[0], 1)},
            mode="vnpu",
            cores=WHOLE,
        ),
    ),
)
