"""The dialects under a configuration: what the section `nvidia` renames, and what it fills in.

Invariant: what the configuration does not name keeps the name that its own system gives it.
"""

from functools import lru_cache

from msgspec import structs

from apportion.core.workloads.dialects.names import HAMI, VOLCANO_VGPU, DialectConfig, VgpuNames
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration

VOLCANO_DOMAIN = "volcano.sh/"


@lru_cache(maxsize=8)
def dialect_config(configuration: Configuration) -> DialectConfig:
    """The dialects under this configuration.

    Raises:
        ValueError: one name is given to two resources.
    """
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
    """The names that the section renames: those of `nvidia.dialect`, or else of the domain that
    its own names are in.
    """
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
