"""What of the dialects can be configured: the names of GPUs, and the defaults that are filled in.

The names are those of HAMi's chart and of Volcano's device plugin. What the plugins of other
dialects call their resources is fixed, and stands in their modules.

Invariant: within one dialect no two resources share a name; two dialects may (Volcano's count can
be `nvidia.com/gpu`), and then the pod's other names tell them apart.
"""

from typing import Annotated

from msgspec import Meta, Struct, structs

from apportion_schemas.configuration import ResourceName
from apportion_schemas.quantities import Count, MemoryMib, Percent


class VgpuNames(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of a GPU by count, memory (MiB or percent) and cores (percent).

    `priority` is None where the dialect has no such resource.
    """

    count: ResourceName
    memory: ResourceName
    memory_percent: ResourceName
    cores: ResourceName
    priority: ResourceName | None = None

    def __post_init__(self) -> None:
        if len(self.every) != len(set(self.every)):
            raise ValueError(
                f"{', '.join(self.every)}: one name twice; give every resource its own"
            )

    @property
    def every(self) -> tuple[str, ...]:
        """All of the dialect's names."""
        return tuple(filter(None, structs.astuple(self)))


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
    default_gpu_count: Count = 1
    default_memory_mib: MemoryMib = 0
    default_cores: Percent = 0
    memory_factor: Annotated[int, Meta(ge=1, le=1024)] = 1
    mig_by_profile: bool = False
