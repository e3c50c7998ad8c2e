"""Which key of the document names which resource, and how manifests are read under it.

Invariant: every resource that the section `nvidia` can rename has one key.
"""

from functools import lru_cache

from msgspec import structs

from apportion.core.workloads.dialects.names import dialect_config, original_names, renamed
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.schedulers import scheduler_names
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration

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
    return {name: RESOURCE_KEYS[part] for part, name in renamed(nvidia).items()}


def names_in_force(nvidia: NvidiaConfiguration) -> list[tuple[str, str]]:
    """Key and name of every resource of the section's dialect, those that are written last."""
    written = renamed(nvidia)
    named = structs.asdict(original_names(nvidia)) | written
    parts = sorted((part for part in RESOURCE_KEYS if named[part]), key=written.__contains__)
    return [(RESOURCE_KEYS[part], named[part]) for part in parts]


@lru_cache(maxsize=8)
def manifest_config(configuration: Configuration) -> ManifestConfig:
    """How manifests are read under this configuration."""
    return ManifestConfig(
        dialects=dialect_config(configuration), schedulers=scheduler_names(configuration)
    )
