"""Check what types cannot express: keys that contradict each other or have no effect.

The fold runs the same check, so it refuses a bad configuration of any writer."""

import re
from functools import lru_cache

import msgspec
from msgspec import structs

from apportion.core.devices.catalogue import mig_profiles, normal
from apportion.core.devices.demand import Unlaid, laid_out
from apportion.core.workloads.dialects.listing import claims
from apportion.core.workloads.dialects.names import dialect_config, original_names, renamed
from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.schedulers import OURS, scheduler_names
from apportion_schemas import Configuration
from apportion_schemas.configuration import (
    IdleConfiguration,
    MigGeometries,
    NodeConfiguration,
    NvidiaConfiguration,
    QueuesConfiguration,
)

WEIGHABLE = ("binpack", "spread")  # policies that consider how full a node is, resource by resource
# Dialects that may share names, because a pod's other names tell them apart
SHARED = frozenset({"plain", "hami", "volcano-vgpu"})

HOURS = {"h": 1, "d": 24}
HALF_LIFE_MAX_MS = 365 * 24 * 3_600_000
_is_duration = re.compile(r"[1-9][0-9]{0,4}[hd]", re.ASCII).fullmatch
MINUTES = {"m": 1, "h": 60, "d": 1_440}
IDLE_AFTER_S = range(3_600, 30 * 24 * 3_600 + 1)
RESERVE_AFTER_S = range(60, 30 * 24 * 3_600 + 1)
_is_minutes = re.compile(r"[1-9][0-9]{0,4}[mhd]", re.ASCII).fullmatch

# Field of `VgpuNames` to the key of the document that renames it
RESOURCE_KEYS = {
    "count": "resourceCountName",
    "memory": "resourceMemoryName",
    "memory_percent": "resourceMemoryPercentageName",
    "cores": "resourceCoreName",
    "priority": "resourcePriorityName",
}


def check(configuration: Configuration) -> None:
    """Raise `ManifestError` if keys contradict each other or have no effect."""
    _check_names(configuration)
    _check_geometries(configuration.nvidia.known_mig_geometries)
    policy = configuration.policy
    if policy.weights is not None and policy.nodes not in (None, *WEIGHABLE):
        raise ManifestError(
            "policy.weights",
            msgspec.to_builtins(policy.weights),
            f"has no effect with policy.nodes: {policy.nodes}",
            f"remove it, or set policy.nodes to one of {', '.join(WEIGHABLE)}",
        )
    _check_queues(configuration.queues)
    check_idle(configuration.idle)
    seen: set[str] = set()
    for position, node in enumerate(configuration.nodeconfig):
        _check_node(node, f"nodeconfig[{position}]", configuration.nvidia)
        if node.name in seen:
            raise ManifestError(
                f"nodeconfig[{position}].name", node.name, "has two entries", "merge them"
            )
        seen.add(node.name)
    ours, extended = configuration.scheduler_names, configuration.extended_scheduler_names
    for key, names in (("schedulerNames", ours), ("extendedSchedulerNames", extended)):
        if len(set(names)) < len(names):
            raise ManifestError(key, names, "has a duplicate", "list each scheduler once")
    for position, name in enumerate(extended):
        if name in (ours or OURS):
            raise ManifestError(
                f"extendedSchedulerNames[{position}]",
                name,
                "is also in schedulerNames, so two schedulers would place its pods",
                "rename the kube-scheduler that uses the extender, or remove the name from "
                "schedulerNames",
            )


def half_life_ms(queues: QueuesConfiguration) -> int:
    """Return after how many milliseconds past use of a queue counts half; 0 if it never counts."""
    number, unit = queues.usage_half_life[:-1], queues.usage_half_life[-1:]
    return int(number) * HOURS[unit] * 3_600_000 if unit else 0


def _check_queues(queues: QueuesConfiguration) -> None:
    said, weight = queues.usage_half_life, queues.usage_weight
    if said and not (_is_duration(said) and half_life_ms(queues) <= HALF_LIFE_MAX_MS):
        raise ManifestError(
            "queues.usageHalfLife",
            said,
            "is not a number of hours or days up to a year",
            'write a duration from "1h" to "365d"',
        )
    if weight is not None and not said:
        raise ManifestError(
            "queues.usageWeight",
            weight,
            "has no effect without queues.usageHalfLife",
            'set queues.usageHalfLife, such as "7d", or remove it',
        )
    after = queues.reserve_after
    if after and not (_is_minutes(after) and reserve_after_s(queues) in RESERVE_AFTER_S):
        raise ManifestError(
            "queues.reserveAfter",
            after,
            "is not a number of minutes, hours or days up to 30 days",
            'write a duration from "1m" to "30d", such as "10m"',
        )


def _seconds(duration: str) -> int:
    number, unit = duration[:-1], duration[-1:]
    return int(number) * MINUTES[unit] * 60 if unit else 0


def reserve_after_s(queues: QueuesConfiguration) -> int:
    """Return after how many seconds a pending pod gets a reservation of nodes; 0 for never."""
    return _seconds(queues.reserve_after)


def idle_after_s(idle: IdleConfiguration) -> int:
    """Return after how many seconds without work a pod is idle; 0 if idle pods are ignored."""
    return _seconds(idle.after)


def check_idle(idle: IdleConfiguration) -> None:
    """Raise `ManifestError` if the section `idle` is invalid or has no effect."""
    if idle.after and not (_is_minutes(idle.after) and idle_after_s(idle) in IDLE_AFTER_S):
        raise ManifestError(
            "idle.after",
            idle.after,
            "is not a number of minutes, hours or days between 1 hour and 30 days",
            'write a duration from "1h" to "30d", such as "4h"',
        )
    if not idle.after and idle != IdleConfiguration():
        raise ManifestError(
            "idle",
            msgspec.to_builtins(idle),
            "has no effect without idle.after",
            'set idle.after, such as "4h", or remove the section',
        )


def _check_names(configuration: Configuration) -> None:
    nvidia = configuration.nvidia
    written = renamed(nvidia)
    if nvidia.dialect and not written:
        raise ManifestError(
            "nvidia.dialect",
            nvidia.dialect,
            "has no effect without a resource name",
            f"set a resource name, such as {RESOURCE_KEYS['count']}, or remove it",
        )
    first: dict[str, str] = {}
    named = structs.asdict(original_names(nvidia)) | written
    # Names that are set come last, so that the error is about one of these.
    for part in sorted((part for part in RESOURCE_KEYS if named[part]), key=written.__contains__):
        name, key = named[part], RESOURCE_KEYS[part]
        if first.setdefault(name, key) != key:
            raise ManifestError(
                f"nvidia.{key}",
                name,
                f"is already used for {first[name]}",
                "give each resource its own name",
            )
    for part, name in written.items():
        for dialect in claims(dialect_config(configuration)).get(name, ()):
            if dialect.name not in SHARED:
                raise ManifestError(
                    f"nvidia.{RESOURCE_KEYS[part]}",
                    name,
                    f"is already a resource of {dialect.name}",
                    "choose another name",
                )


def _check_geometries(known: tuple[MigGeometries, ...]) -> None:
    owner: dict[str, str] = {}
    for position, geometries in enumerate(known):
        path = f"nvidia.knownMigGeometries[{position}]"
        for model in dict.fromkeys(map(normal, geometries.models)):
            if owner.setdefault(model, path) != path:
                raise ManifestError(
                    f"{path}.models", model, f"is also in {owner[model]}", "keep one of them"
                )
        names = [group.group for group in geometries.allowed_geometries]
        if len(set(names)) < len(names):
            raise ManifestError(
                f"{path}.allowedGeometries", names, "has two groups of one name", "rename one"
            )
        for at, group in enumerate(geometries.allowed_geometries):
            for model in geometries.models:
                if not mig_profiles("nvidia", model):
                    raise ManifestError(
                        f"{path}.models",
                        model,
                        "is not the name of a GPU model with MIG",
                        "write the whole name, such as A100-SXM4-40GB (`nvidia-smi -L`)",
                    )
                try:
                    laid_out(group, 1, model)
                except Unlaid as error:
                    raise ManifestError(
                        f"{path}.allowedGeometries[{at}]",
                        group.group,
                        f"is not possible: {error}",
                        "correct the names and counts, or remove the group",
                    ) from None


def _check_node(node: NodeConfiguration, path: str, nvidia: NvidiaConfiguration) -> None:
    if node == NodeConfiguration(name=node.name):
        raise ManifestError(path, node.name, "has no settings", "add one, or remove the entry")
    if node.mig_strategy not in (None, nvidia.mig_strategy):
        raise ManifestError(
            f"{path}.migstrategy",
            node.mig_strategy,
            f"differs from nvidia.migStrategy ({nvidia.mig_strategy})",
            "remove it, or change nvidia.migStrategy, which applies to every node",
        )
    for key, value in (
        ("devicememoryscaling", node.device_memory_scaling),
        ("devicecorescaling", node.device_core_scaling),
    ):
        if node.operating_mode == "mig" and value not in (None, 1.0):
            raise ManifestError(
                f"{path}.{key}",
                value,
                "has no effect on GPUs in MIG mode",
                "remove it, or choose another operatingmode",
            )


@lru_cache(maxsize=8)
def manifest_config(configuration: Configuration) -> ManifestConfig:
    """Return the settings for reading manifests under this configuration."""
    return ManifestConfig(
        dialects=dialect_config(configuration), schedulers=scheduler_names(configuration)
    )
