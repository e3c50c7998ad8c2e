"""Check a node's report of its devices against the catalogue and its last report.

A large change of the devices is accepted only when the agent reports it again. Invariant: an honest
report passes. An unknown model has a generous limit; a reboot or a new device is not suspicious."""

import re
from functools import lru_cache
from operator import attrgetter
from typing import Final

from apportion.core.devices.catalogue import FAMILIES, mig_profiles, normal
from apportion.core.devices.demand import memory_charged_mib
from apportion.core.devices.simulating import models
from apportion_schemas import Configuration, Device, NodeReported
from apportion_schemas.configuration import NodeConfiguration
from apportion_schemas.quantities import WHOLE

MARGIN: Final = 1.1  # drivers report slightly more or less than the catalogue
UNKNOWN_FACTOR: Final = 2  # the limit for unknown models, relative to the largest known one
_REFITTED_FACTOR: Final = 2  # consumer GPUs are sold under the same name with twice the memory
JUMP_CARDS: Final = 2  # one GPU more or less is ordinary maintenance
_SIZE = re.compile(r"(?<![0-9.])(\d{1,4})\s?gb\b")


@lru_cache(maxsize=1024)
def memory_most_mib(model: str) -> int:
    """Return the most memory that a GPU of this model can have, in MiB."""
    name = normal(model).removeprefix("nvidia-")
    known = {
        normal(each.model).removeprefix("nvidia-"): each.memory_mib for each in models().values()
    }
    if name in known:
        return int(known[name] * MARGIN * (_REFITTED_FACTOR if "geforce" in name else 1))
    size = _SIZE.search(model.lower())
    if size is not None:
        return int(int(size[1]) * 1024 * MARGIN)
    return UNKNOWN_FACTOR * max(known.values())


def implausible(report: NodeReported, configuration: Configuration) -> str:
    """Return why no real node can have these devices; empty if it can."""
    ids = {device.id for device in report.devices}
    if len(ids) != len(report.devices):
        return "two devices have the same id"
    if len({device.index for device in report.devices}) != len(report.devices):
        return "two devices have the same index"
    said = next((n for n in configuration.nodeconfig if n.name == report.node), None)
    for device in report.devices:
        trouble = _implausible(device, configuration, said)
        if trouble:
            return f"device {device.id}: {trouble}"
    return ""


def _implausible(
    device: Device, configuration: Configuration, said: NodeConfiguration | None
) -> str:
    family = FAMILIES.get(device.family)
    if family is None:
        return f"unknown family {device.family!r}; known are {', '.join(sorted(FAMILIES))}"
    most_mib = memory_most_mib(device.model)
    if device.physical_memory_mib > most_mib:
        return (
            f"{device.physical_memory_mib:,} MiB, but a {device.model} has at most "
            f"{most_mib:,} MiB; add a new model to the device catalogue"
        )
    nvidia = configuration.nvidia
    memory = (said and said.device_memory_scaling) or nvidia.device_memory_scaling
    cores = (said and said.device_core_scaling) or nvidia.device_core_scaling
    offered = int(device.physical_memory_mib * max(1.0, memory)) + 1
    if device.memory_mib > offered:
        return (
            f"offers {device.memory_mib:,} MiB, more than its {device.physical_memory_mib:,} MiB "
            "times deviceMemoryScaling"
        )
    whole = max(WHOLE, family.cores)
    if device.cores > int(whole * max(1.0, cores)) + 1:
        return f"offers {device.cores:,} % cores, more than {whole} % times deviceCoreScaling"
    sizes = device.mig_sizes
    for profile in mig_profiles(device.family, device.model, sizes) if sizes else ():
        part_mib = memory_charged_mib(profile, device)
        if profile.memory_mib > part_mib * MARGIN:
            return (
                f"MIG profile {profile.name} has {profile.memory_mib:,} MiB, but its slices have "
                f"{part_mib:,} MiB"
            )
    return ""


def jump(before: NodeReported | None, now: NodeReported) -> str:
    """Return why a node must report its new device list twice; empty if the list changed little."""
    if before is None:
        return ""
    had = {device.id: device for device in before.devices}
    has = {device.id: device for device in now.devices}
    gone, new = len(had.keys() - has.keys()), len(has.keys() - had.keys())
    for what, many in (("vanished", gone), ("appeared", new)):
        if many >= JUMP_CARDS and 2 * many > len(had):
            return f"{many} devices {what} at once; the node had {len(had)}"
    nature = attrgetter("family", "model", "physical_memory_mib")
    for name in sorted(had.keys() & has.keys()):
        if nature(had[name]) != nature(has[name]):
            return f"device {name} changed from {had[name].model} to {has[name].model}"
    return ""
