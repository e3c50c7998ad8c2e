"""The configurable settings of dialects: the resource names of GPUs, and defaults.

The section `nvidia` of the configuration renames the resources of HAMi or Volcano; the names of
other dialects are fixed. Invariant: no two resources of one dialect have the same name. Two
dialects may share a name (Volcano's count can be `nvidia.com/gpu`); then the other resources that
the pod requests decide which dialect applies."""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, structs

from apportion_schemas import Configuration
from apportion_schemas.configuration import MigGeometries, NvidiaConfiguration, ResourceName
from apportion_schemas.quantities import Count, MemoryMib, Percent


class VgpuNames(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dialect's resource names for GPU shares: count, memory (MiB or percent) and cores.

    `priority` is None if the dialect has no such resource."""

    count: ResourceName
    memory: ResourceName
    memory_percent: ResourceName
    cores: ResourceName
    priority: ResourceName | None = None

    def __post_init__(self) -> None:
        if len(self.every) != len(set(self.every)):
            raise ValueError(
                f"duplicate resource name in {', '.join(self.every)}; give each its own"
            )

    @property
    def every(self) -> tuple[str, ...]:
        """Return all resource names of the dialect that are set."""
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
    """The configured settings for reading the device requests of pods.

    The defaults apply to amounts that a GPU container does not request."""

    plain_count: ResourceName = "nvidia.com/gpu"
    hami: VgpuNames = HAMI
    volcano_vgpu: VgpuNames = VOLCANO_VGPU
    default_gpu_count: Count = 1  # if only memory or cores are requested
    default_memory_mib: MemoryMib = 0  # 0: the whole GPU
    default_cores: Percent = 0
    memory_factor: Annotated[int, Meta(ge=1, le=1024)] = 1  # MiB in one unit of memory
    mig_by_profile: bool = False  # `migStrategy: mixed`
    geometries: tuple[MigGeometries, ...] = ()  # `knownMigGeometries`


VOLCANO_DOMAIN = "volcano.sh/"


@lru_cache(maxsize=8)
def dialect_config(configuration: Configuration) -> DialectConfig:
    """Return the configuration's dialect settings.

    Raises ValueError if two resources share a name."""
    nvidia = configuration.nvidia
    names = renamed(nvidia)
    defaults = DialectConfig(
        default_gpu_count=nvidia.default_gpu_num,
        default_memory_mib=nvidia.default_memory,
        default_cores=nvidia.default_cores,
        memory_factor=nvidia.gpu_memory_factor,
        mig_by_profile=nvidia.mig_strategy == "mixed",
        geometries=nvidia.known_mig_geometries,
    )
    if not names:
        return defaults
    original = original_names(nvidia)
    changed = structs.replace(original, **names)
    if original is VOLCANO_VGPU:
        return structs.replace(defaults, volcano_vgpu=changed)
    return structs.replace(defaults, hami=changed)


def original_names(nvidia: NvidiaConfiguration) -> VgpuNames:
    """Return the default resource names of the dialect that the section `nvidia` configures.

    Without `nvidia.dialect`, the domain of the configured names decides which dialect that is."""
    volcano = any(name.startswith(VOLCANO_DOMAIN) for name in renamed(nvidia).values())
    chosen = nvidia.dialect or ("volcano-vgpu" if volcano else "hami")
    return VOLCANO_VGPU if chosen == "volcano-vgpu" else HAMI


def renamed(nvidia: NvidiaConfiguration) -> dict[str, str]:
    """Return the configured resource names; the keys are fields of `VgpuNames`."""
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
