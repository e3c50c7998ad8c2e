"""How manifests are read under a configuration: resource names and what is filled in.

Invariant: what the configuration does not name keeps the name that its own system gives it.
"""

from functools import lru_cache

from msgspec import structs

from apportion.core.dialects.names import HAMI, VOLCANO_VGPU, DialectConfig, VgpuNames
from apportion.core.manifests.template import ManifestConfig
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration

VOLCANO_DOMAIN = "volcano.sh/"
RESOURCE_KEYS = {
    "count": "resourceCountName",
    "memory": "resourceMemoryName",
    "memory_percent": "resourceMemoryPercentageName",
    "cores": "resourceCoreName",
    "priority": "resourcePriorityName",
}
"""Field of `VgpuNames` to key of the document."""


def written_names(nvidia: NvidiaConfiguration) -> dict[str, str]:
    """The resource names that the document says, with their keys."""
    return {name: RESOURCE_KEYS[part] for part, name in _names(nvidia).items()}


def names_in_force(nvidia: NvidiaConfiguration) -> list[tuple[str, str]]:
    """Key and name of every resource of the section's dialect, those that are written last."""
    written = _names(nvidia)
    named = structs.asdict(_base(nvidia)) | written
    parts = sorted((part for part in RESOURCE_KEYS if named[part]), key=written.__contains__)
    return [(RESOURCE_KEYS[part], named[part]) for part in parts]


@lru_cache(maxsize=8)
def dialect_config(configuration: Configuration) -> DialectConfig:
    """The dialects under this configuration.

    Raises:
        ValueError: one name is given to two resources.
    """
    nvidia = configuration.nvidia
    names = _names(nvidia)
    defaults = DialectConfig(
        default_gpu_count=nvidia.default_gpu_num,
        default_memory_mib=nvidia.default_memory,
        default_cores=nvidia.default_cores,
        memory_factor=nvidia.gpu_memory_factor,
        mig_by_profile=nvidia.mig_strategy == "mixed",
    )
    if not names:
        return defaults
    base = _base(nvidia)
    renamed = structs.replace(base, **names)
    if base is VOLCANO_VGPU:
        return structs.replace(defaults, volcano_vgpu=renamed)
    return structs.replace(defaults, hami=renamed)


@lru_cache(maxsize=8)
def manifest_config(configuration: Configuration) -> ManifestConfig:
    """How manifests are read under this configuration."""
    return ManifestConfig(dialects=dialect_config(configuration))


def _base(nvidia: NvidiaConfiguration) -> VgpuNames:
    """The names that the section renames."""
    volcano = any(name.startswith(VOLCANO_DOMAIN) for name in _names(nvidia).values())
    chosen = nvidia.dialect or ("volcano-vgpu" if volcano else "hami")
    return VOLCANO_VGPU if chosen == "volcano-vgpu" else HAMI


def _names(nvidia: NvidiaConfiguration) -> dict[str, str]:
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
