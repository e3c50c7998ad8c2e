"""What of the dialects can be configured: the names of GPUs, and the defaults that are filled in.

The names are those of HAMi's chart and of Volcano's device plugin; the section `nvidia` of the
configuration renames them. What the plugins of other dialects call their resources is fixed, and is
in their modules. Invariant: what the configuration does not name keeps the name that its own system
gives it. Within one dialect no two resources share a name; two dialects may (Volcano's count can be
`nvidia.com/gpu`), and then the pod's other names tell them apart."""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, structs

from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration, ResourceName
from apportion_schemas.quantities import Count, MemoryMib, Percent


class VgpuNames(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of a GPU by count, memory (MiB or percent) and cores (percent).

    `priority` is None where the dialect has no such resource."""

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
    for MIG instances by their profile (`migStrategy: mixed`)."""

    plain_count: ResourceName = "nvidia.com/gpu"
    hami: VgpuNames = HAMI
    volcano_vgpu: VgpuNames = VOLCANO_VGPU
    default_gpu_count: Count = 1
    default_memory_mib: MemoryMib = 0
    default_cores: Percent = 0
    memory_factor: Annotated[int, Meta(ge=1, le=1024)] = 1
    mig_by_profile: bool = False


VOLCANO_DOMAIN = "volcano.sh/"


@lru_cache(maxsize=8)
def dialect_config(configuration: Configuration) -> DialectConfig:
    """The dialects under this configuration.

    Raises ValueError: one name is given to two resources."""
    nvidia = configuration.nvidia
    names = renamed(nvidia)
    defaults = DialectConfig(
        default_gpu_count=nvidia.default_gpu_num,
        default_memory_mib=nvidia.default_memory,
        default_cores=nvidia.default_cores,
        memory_factor=nvidia.gpu_memory_factor,
        mig_by_profile=nvidia.mig_strategy == "mixed",
    )
    if not names:
        return defaults
    original = original_names(nvidia)
    changed = structs.replace(original, **names)
    if original is VOLCANO_VGPU:
        return structs.replace(defaults, volcano_vgpu=changed)
    return structs.replace(defaults, hami=changed)


def original_names(nvidia: NvidiaConfiguration) -> VgpuNames:
    """The names that the section renames: those of `nvidia.dialect`, or else of the domain that its
    own names are in."""
    volcano = any(name.startswith(VOLCANO_DOMAIN) for name in renamed(nvidia).values())
    chosen = nvidia.dialect or ("volcano-vgpu" if volcano else "hami")
    return VOLCANO_VGPU if chosen == "volcano-vgpu" else HAMI


def renamed(nvidia: NvidiaConfiguration) -> dict[str, str]:
    """The resource names that the section gives, by the field of `VgpuNames`."""
    return {
        part: name
        for part, name in (
            ("count", nvidia.resource_count_name),
            ("memory", nvidia.resource_memory_name),
            ("memory_percent", nvidia.resource_memory_percentage_name),
            ("cores", nvidia.resource_core_name),
            ("priority", nvidia.resource_priority_name),
        )
        if name is not None
    }
