"""The resource names of every dialect and the defaults that are filled in: all of it configurable.

The defaults are those of HAMi's chart, Volcano's device plugin, gpu-manager and Ascend's plugin.
Invariant: within one dialect no two resources share a name; two dialects may (Volcano's count can
be `nvidia.com/gpu`), and then the pod's other names tell them apart.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from apportion_schemas.configuration import ResourceName
from apportion_schemas.quantities import Count, MemoryMib, Name, Percent


class _Names(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resource names of one dialect; None is a resource that the dialect does not have."""

    def __post_init__(self) -> None:
        used = [value for value in msgspec.structs.astuple(self) if value and "/" in str(value)]
        if len(used) != len(set(used)):
            raise ValueError(f"{', '.join(used)}: one name twice; give every resource its own")


class VgpuNames(_Names, frozen=True):
    """A share of a GPU by count, memory (MiB or percent) and cores (percent)."""

    count: ResourceName
    memory: ResourceName
    memory_percent: ResourceName
    cores: ResourceName
    priority: ResourceName | None = None

    @property
    def every(self) -> frozenset[str]:
        """All of the dialect's names."""
        return frozenset(filter(None, msgspec.structs.astuple(self)))


class GpuShareNames(_Names, frozen=True):
    """Volcano's older names: memory on one card, or a number of whole cards."""

    memory: ResourceName = "volcano.sh/gpu-memory"
    count: ResourceName = "volcano.sh/gpu-number"


class VcudaNames(_Names, frozen=True):
    """gpu-manager's names: hundredths of a card, and memory in units of 256 MiB."""

    cores: ResourceName
    memory: ResourceName


class MluNames(_Names, frozen=True):
    """Cambricon's names: MLUs, and of each memory in units of 256 MiB and compute in percent."""

    count: ResourceName = "cambricon.com/vmlu"
    memory: ResourceName = "cambricon.com/mlu.smlu.vmemory"
    cores: ResourceName = "cambricon.com/mlu.smlu.vcore"


class NpuNames(_Names, frozen=True):
    """One Ascend family. `paired`: its dies come two to a module and are handed out in pairs."""

    word: Name
    family: Name
    count: ResourceName
    memory: ResourceName
    cores: ResourceName
    paired: bool = False


def _npu(word: str, *, paired: bool = False) -> NpuNames:
    return NpuNames(
        word=word,
        family=word.lower(),
        count=f"huawei.com/{word}",
        memory=f"huawei.com/{word}-memory",
        cores=f"huawei.com/{word}-core",
        paired=paired,
    )


HAMI = VgpuNames(
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    memory_percent="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    priority="nvidia.com/priority",
)
VOLCANO_VGPU = VgpuNames(
    count="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    memory_percent="volcano.sh/vgpu-memory-percentage",
    cores="volcano.sh/vgpu-cores",
)
VCUDA = (
    VcudaNames(cores="docker.com/vcuda-core", memory="docker.com/vcuda-memory"),
    VcudaNames(cores="tencent.com/vcuda-core", memory="tencent.com/vcuda-memory"),
)
ASCEND = (
    _npu("Ascend910A"),
    _npu("Ascend910B2"),
    _npu("Ascend910B3"),
    _npu("Ascend910B4"),
    _npu("Ascend910B4-1"),
    _npu("Ascend910C", paired=True),
    _npu("Ascend310P"),
)


class DialectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods are read.

    A default fills in what a GPU container leaves out: `default_gpu_count` where only memory or
    cores are asked, `default_memory_mib` (0: the whole card) and `default_cores` where they are
    not. One unit of an amount of GPU memory is `memory_factor` MiB. `mig_by_profile`: a pod may ask
    for MIG instances by their profile (`migStrategy: mixed`).
    """

    plain_count: ResourceName = "nvidia.com/gpu"
    hami: VgpuNames = HAMI
    volcano_vgpu: VgpuNames = VOLCANO_VGPU
    volcano_share: GpuShareNames = GpuShareNames()
    vcuda: tuple[VcudaNames, ...] = VCUDA
    ascend: tuple[NpuNames, ...] = ASCEND
    cambricon: MluNames = MluNames()
    default_gpu_count: Count = 1
    default_memory_mib: MemoryMib = 0
    default_cores: Percent = 0
    memory_factor: Annotated[int, Meta(ge=1, le=1024)] = 1
    mig_by_profile: bool = False
