"""The dialects of AMD GPUs: `amd.com/gpu`, `gpumem` in MiB, `gpucores` in percent.

The rules are those of HAMi's AMD device (2.10). Memory and cores are per GPU. A request without
memory gets all memory. A request without cores gets all compute units. Less than 1 and more than
100 percent is refused, as by HAMi's webhook. A share has a number of compute units, at least one.
The plugin registers how many a GPU has, and reads the number and the GPU's model with each device.
Nodes on which HAMi registered no GPU offer whole ones, as AMD's own plugin counts them, with the
model and memory of AMD's node labeller. Without these labels, the memory is the amount that HAMi up
to 2.9 assumes. Both plugins count the same resource, and HAMi's counts ten shares per GPU before it
registers any. So a node with the label for HAMi's plugin never offers whole GPUs."""

from collections.abc import Iterator
from typing import Any

from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    CORES_PERCENT,
    Bound,
    PlacedPod,
    Resource,
    Selecting,
    of_family,
    record,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import (
    Entry,
    Inventory,
    NodeFacts,
    Unread,
    alike,
    devices_of,
    in_annotation,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import DEVICE_PLUGIN, Ask, Device
from apportion_schemas.quantities import WHOLE

COUNT, MEMORY, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
REGISTER = "hami.io/node-amd-register"
PRODUCT, VRAM = "amd.com/gpu.product-name", "amd.com/gpu.vram"  # labels; memory as in `192G`
GPU_MIB = 192_000
GPU = HamiDevice(
    family="amd",
    devices="AMD GPUs",
    names=Names(COUNT, MEMORY, CORES),
    word="amd",
    type="AMDGPU",
    selecting=Selecting(
        use_types=("amd.com/use-gputype",),
        nouse_types=("amd.com/nouse-gputype",),
        use_ids=("amd.com/use-gpu-uuid",),
        nouse_ids=("amd.com/nouse-gpu-uuid",),
    ),
)
# a limit of `gpucores` is in percent, although shares have compute units
RESOURCES = of_family(GPU.family, GPU.names, clamps=False) | {
    CORES: Resource((GPU.family,), Bound(CORES_PERCENT, GPU.family))
}


def _read(container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
    cores = amounts.get(CORES)
    if cores and COUNT in amounts and not 1 <= cores.value <= WHOLE:
        fix = "write 1 to 100, or remove it to request all compute units"
        raise cores.refusal("is not a percentage from 1 to 100", fix)
    return GPU.read(container, amounts, config)


def _render(it: PlacedPod) -> dict[str, str]:
    return GPU.allocated(
        it, lambda s: record(s.device, it.devices[s.device].model, s.memory_mib, s.cores)
    )


def _counted(entry: Entry) -> dict[str, Any]:
    if entry.devcore < 1:
        raise Unread(f"{REGISTER}: device {entry.id[:40]!r} has no compute units")
    return {}


def _whole(node: NodeFacts) -> Iterator[Device]:
    if REGISTER in node.annotations or node.labels.get(DEVICE_PLUGIN) == "hami":
        return
    gib = node.labels.get(VRAM, "").removesuffix("G")
    mib = int(gib) << 10 if gib.isascii() and gib.isdecimal() else GPU_MIB
    model = node.labels.get(PRODUCT, GPU.type)
    found = alike(node, node.allocatable.get(COUNT, 0), GPU.type, devmem=mib, type=model)
    yield from devices_of(found, GPU.family, mode="exclusive", slots=1)


DIALECTS = (
    # of a pod that only requests GPUs, not parts of them
    GPU.dialect(
        "amd-gpu",
        resources=lambda _: {COUNT: RESOURCES[COUNT]},
        read=_read,
        render=_render,
        needs={},
        inventory=Inventory("vendor", (COUNT,), _whole),
    ),
    GPU.dialect(
        "amd",
        section=GPU.names.section,
        resources=lambda _: RESOURCES,
        read=_read,
        render=_render,
        inventory=in_annotation(REGISTER, GPU.family, COUNT, _counted),
    ),
)
