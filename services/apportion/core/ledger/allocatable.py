"""What a node shows of its GPUs beside the slots that the kubelet counts: memory and cores.

They are extended resources of the node's status, under the names of HAMi and of Volcano. Once a
node shows them its kubelet counts: a pod whose amounts exceed what is left is rejected for good.
The kubelet goes by what pods wrote, and the ledger by what they hold, which may be less: an amount
above the card that Volcano's names cap, a pod that was made smaller, a card that is gone with its
pods still there. So a node shows what its cards have, and beside it what its pods wrote beyond what
they hold. A container counts once there, however many cards it has.

Invariant: what the pods of a node wrote is never more than what `shown` says of it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from apportion.core.ledger.state import NodeState, PodState
from apportion.core.workloads.dialects import hami, nvidia, volcano_vgpu
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion_schemas import Device

WHOLE_ONLY = "exclusive"
"""The mode of cards that NVIDIA's own plugin hands out, and shows as it likes."""


Wrote = Mapping[str, Mapping[str, int]]
"""By pod uid, what it wrote under each name, of pods whose asks are no longer what they wrote."""
NOBODY: Wrote = {}


class _Amounts(NamedTuple):
    memory_mib: int
    cores: int

    def under(self, names: VgpuNames, config: DialectConfig) -> dict[str, int]:
        """By resource name, in its units; what has begun of a unit counts as one."""
        memory = -(-self.memory_mib // config.memory_factor)
        return {n: a for n, a in ((names.memory, memory), (names.cores, self.cores)) if a}


def shown(node: NodeState, config: DialectConfig, wrote: Wrote = NOBODY) -> dict[str, int]:
    """How much of each name the node shows; a name of which there is nothing is left out."""
    found = Counter(cards(node, config))
    for pod in node.pods.values():
        found.update(beyond(pod, node, config, wrote))
    return dict(found)


def cards(node: NodeState, config: DialectConfig) -> dict[str, int]:
    """How much of each name its cards have, whatever their health: running pods keep theirs."""
    return of_devices((node.by_id[name].device for name in _shared(node)), config)


def of_devices(cards: Iterable[Device], config: DialectConfig) -> dict[str, int]:
    """How much of each name these devices have, of those that can be shared."""
    devices = [each for each in cards if _sharable(each)]
    units = sum(device.memory_mib // config.memory_factor for device in devices)
    total = _Amounts(units * config.memory_factor, sum(device.cores for device in devices))
    return total.under(config.hami, config) | total.under(config.volcano_vgpu, config)


def beyond(
    pod: PodState, node: NodeState, config: DialectConfig, wrote: Wrote = NOBODY
) -> Mapping[str, int]:
    """How much of each name a pod that is placed there wrote beyond what it holds there."""
    names = {hami.NAME: config.hami, volcano_vgpu.NAME: config.volcano_vgpu}.get(
        pod.submitted.dialect
    )
    if names is None or pod.placement is None or not pod.placement.attempt:
        return {}  # without an attempt others bound it: its kubelet judges it by what is left
    there = _shared(node)
    held = [share for share in pod.placement.shares if share.device in there]
    written = wrote.get(pod.uid)
    if written is not None:
        whole = _Amounts(sum(share.memory_mib for share in held), sum(s.cores for s in held))
        return Counter(written) - Counter(whole.under(names, config))
    memory_mib = cores = 0
    for ask in pod.submitted.shape.asks:
        own = [share for share in held if share.container == ask.container]
        memory_mib += max((ask.memory_mib or 0) - sum(share.memory_mib for share in own), 0)
        cores += max(ask.cores - sum(share.cores for share in own), 0)
    return _Amounts(memory_mib, cores).under(names, config)


def names_of(config: DialectConfig) -> frozenset[str]:
    """All names that nodes show."""
    return frozenset(
        name for each in (config.hami, config.volcano_vgpu) for name in (each.memory, each.cores)
    )


def _shared(node: NodeState) -> frozenset[str]:
    return frozenset(
        name for name, each in node.by_id.items() if each.present and _sharable(each.device)
    )


def _sharable(device: Device) -> bool:
    return device.family == nvidia.FAMILY and device.mode != WHOLE_ONLY
