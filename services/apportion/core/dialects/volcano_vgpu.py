"""Volcano vGPU: `volcano.sh/vgpu-number`, `vgpu-memory`, `vgpu-memory-percentage`, `vgpu-cores`.

Memory above the card's size is capped at the card. A count alone is that many whole cards; a
percentage of 100 without cores is not, because Volcano lets such a card's cores be shared.

Its device plugin takes a placement from the pod's annotations: one segment for each container that
has a GPU. A MIG instance is named by its group and its position in it, so a cluster with that
plugin needs `knownMigGeometries`; where none are configured, the groups are those that the plugin
comes with.
"""

from apportion.core.devices.geometries import generated, laid_out
from apportion.core.dialects import vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion.core.dialects.placed_pod import PlacedPod, record
from apportion_schemas import Ask, MigInstance, Share
from apportion_schemas.quantities import WHOLE

NAME = "volcano-vgpu"
TYPE = "NVIDIA"


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    names = config.volcano_vgpu

    def read(container: Container, amounts: Amounts) -> Ask | None:
        return vgpu.read(
            container, amounts, names, config, cap_memory=True, full_percentage_is_alone=False
        )

    return (Dialect(NAME, names.every, read, names.priority or ""),)


def render(it: PlacedPod) -> dict[str, str]:
    """What Volcano's scheduler writes on a pod of this placement."""
    held = [shares for name in it.containers if (shares := it.shares(name))]
    segments = ";".join("".join(_record(it, share) for share in shares) for shares in held)
    return {
        "volcano.sh/vgpu-ids-new": segments,
        "volcano.sh/devices-to-allocate": segments,
        "volcano.sh/vgpu-node": it.placed.node,
        "volcano.sh/vgpu-time": it.seconds,
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": it.seconds,
    }


def _record(it: PlacedPod, share: Share) -> str:
    """Memory is in units of `gpuMemoryFactor` MiB; that of a MIG instance is what was asked for."""
    factor = it.config.memory_factor
    if share.instance is None:
        return record(share.device, TYPE, share.memory_mib // factor, min(share.cores, WHOLE))
    name = f"{share.device}[{_where(it.devices[share.device].model, share.instance)}]"
    return record(name, TYPE, it.asked_memory_mib(share) // factor, it.ask(share.container).cores)


def _where(model: str, instance: MigInstance) -> str:
    if instance.group:
        return f"{instance.group}-{instance.position}"
    for group in generated(model):
        if group.geometries[0].name == instance.profile:
            places = laid_out(group, 1, model)
            found = (p.position for p in places if p.start == instance.start)
            return f"{group.group}-{next(found, 0)}"
    return f"{instance.profile}-{instance.start}"
