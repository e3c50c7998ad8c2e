"""The dialect of NVIDIA's own device plugin: `nvidia.com/gpu: N`, and MIG by profile.

The pod requests N whole GPUs, unless a default amount of memory is configured. With `migStrategy:
mixed`, `nvidia.com/mig-1g.5gb: N` requests N instances of that profile, on one GPU or several.
Otherwise, that name is an extended resource of the node."""

from collections.abc import Iterator

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects import hami, nvidia, volcano_vgpu
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    INSTANCES,
    SHARES,
    SLOT,
    Bound,
    PlacedPod,
    Resource,
    Resources,
)
from apportion.core.workloads.dialects.inventory import Inventory, NodeFacts, alike, devices_of
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import DEVICE_PLUGIN, Ask, Device, Plugin
from apportion_schemas.quantities import WHOLE

MIG = "nvidia.com/mig-"
# resource to profile, of every model that we know
PROFILES = {
    MIG + profile.name: profile.name
    for model in FAMILIES[nvidia.FAMILY].models
    for profile in model.profiles
}


def example(resource: str) -> tuple[str, int]:
    """Return a GPU model with the MIG profile of this resource, and the profile's memory in MiB."""
    found = (
        (profile.by_name, model.match[0], profile.memory_mib)
        for model in FAMILIES[nvidia.FAMILY].models
        for profile in model.profiles
        if profile.name == PROFILES[resource]
    )
    return min(found, key=lambda each: each[0])[1:]


def _resources(config: DialectConfig) -> Resources:
    cards = {config.plain_count: Resource((nvidia.FAMILY,), Bound(SHARES, nvidia.FAMILY))}
    if not config.mig_by_profile:
        return cards
    return cards | {
        name: Resource((nvidia.FAMILY,), Bound(INSTANCES, profile))
        for name, profile in PROFILES.items()
    }


def _read(container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
    cards = amounts.get(config.plain_count)
    asked = [(name, a) for name, a in amounts.items() if a.value and name in PROFILES]
    if asked:
        (name, amount), *others = asked
        second = others[0][1] if others else cards if cards and cards.value else None
        if second is not None:
            fix = "request only one of the two resources"
            raise second.refusal(f"is requested together with {name} in one container", fix)
        return container.ask(nvidia.FAMILY, count=amount.devices(), profile=PROFILES[name])
    if cards is None or cards.value == 0:
        return None
    memory_mib = config.default_memory_mib or None
    cores = WHOLE if memory_mib is None else config.default_cores
    return container.ask(nvidia.FAMILY, count=cards.devices(), memory_mib=memory_mib, cores=cores)


def _render(it: PlacedPod) -> dict[str, str]:
    if all(it.devices[share.device].mode == "exclusive" for share in it.placed.shares):
        return {}  # NVIDIA's own plugin reads no annotations
    return volcano_vgpu.render(it) if _plugin(it.config) == "volcano" else hami.render(it)


def _plugin(config: DialectConfig) -> Plugin:
    return "volcano" if config.volcano_vgpu.count == config.plain_count else "hami"


def _offered(node: NodeFacts) -> Iterator[Device]:
    """Yield the GPUs that NVIDIA's own plugin counts, on nodes with the label `DEVICE_PLUGIN`.

    HAMi's plugin counts shares under the same name, before it registers its GPUs. Model and memory
    are from the labels of GPU feature discovery. With time slicing, each replica counts as a GPU
    with a part of the memory."""
    devices = node.allocatable.get(node.config.plain_count, 0)
    if not devices or SLOT in node.allocatable or node.labels.get(DEVICE_PLUGIN) != "vendor":
        return
    labels = (node.labels.get(f"nvidia.com/gpu.{name}", "") for name in ("memory", "replicas"))
    memory, replicas = (int(text) if text.isdecimal() else 0 for text in labels)
    model = node.labels.get("nvidia.com/gpu.product", "NVIDIA GPU")
    mib = max(memory // max(replicas, 1), 1)
    found = alike(node, devices, "nvidia", devmem=mib, type=model, count=1)
    yield from devices_of(found, nvidia.FAMILY, mode="exclusive")


DIALECT = nvidia.dialect(
    "plain",
    resources=_resources,
    read=_read,
    render=_render,
    recover={},
    plugin=_plugin,
    inventory=Inventory("vendor", ("nvidia.com/gpu",), _offered),
    locks={**hami.DIALECT.locks, **volcano_vgpu.DIALECT.locks},
)
