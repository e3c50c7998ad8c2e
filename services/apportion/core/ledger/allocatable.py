"""Compute the GPU memory and cores that a node reports as extended resources.

Both are in the node's status under HAMi's and Volcano's names. The kubelet counts what pods
requested, and rejects a pod for good if it requests more than is left. The ledger counts what pods
use. That is less if a pod was resized, a GPU was removed, or Volcano capped a request at the GPU.
So a node reports what its GPUs have, plus what its pods requested but do not use. The kubelet
counts a container once, however many GPUs it has.

Invariant: the requests of a node's pods never exceed what `shown` returns."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from apportion.core.ledger.state import NodeState, PodState
from apportion.core.workloads.dialects import hami, nvidia, vcuda, volcano_share, volcano_vgpu
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion_schemas import Device

WHOLE_ONLY = "exclusive"  # mode of GPUs that NVIDIA's own plugin hands out and reports

# By pod uid: the requested amounts by name, for pods whose asks have changed since.
Wrote = Mapping[str, Mapping[str, int]]
NOBODY: Wrote = {}


class _Amounts(NamedTuple):
    memory_mib: int
    cores: int

    def under(self, names: VgpuNames, config: DialectConfig) -> dict[str, int]:
        memory = -(-self.memory_mib // config.memory_factor)
        return {n: a for n, a in ((names.memory, memory), (names.cores, self.cores)) if a}


def shown(node: NodeState, config: DialectConfig, wrote: Wrote = NOBODY) -> dict[str, int]:
    """Return the amounts that the node reports, by resource name, without zeros."""
    found = Counter(cards(node, config))
    for pod in node.pods.values():
        found.update(beyond(pod, node, config, wrote))
    return dict(found)


def cards(node: NodeState, config: DialectConfig) -> dict[str, int]:
    """Return the total memory and cores of the node's shareable devices, by resource name."""
    return of_devices((node.by_id[name].device for name in _shared(node)), config)


def of_devices(cards: Iterable[Device], config: DialectConfig) -> dict[str, int]:
    """Return the total memory and cores of the shareable devices in `cards`, by resource name."""
    devices = [each for each in cards if _sharable(each)]
    units = sum(device.memory_mib // config.memory_factor for device in devices)
    total = _Amounts(units * config.memory_factor, sum(device.cores for device in devices))
    return total.under(config.hami, config) | total.under(config.volcano_vgpu, config)


def beyond(
    pod: PodState, node: NodeState, config: DialectConfig, wrote: Wrote = NOBODY
) -> Mapping[str, int]:
    """Return how much more a placed pod requested than it uses, by resource name.

    `wrote` has the requests in pods' specs by uid, because a resize changes those in the ledger."""
    names = {hami.NAME: config.hami, volcano_vgpu.NAME: config.volcano_vgpu}.get(
        pod.submitted.dialect
    )
    if names is None or pod.placement is None or not pod.placement.attempt:
        return {}  # no attempt: another scheduler bound it, and its kubelet decides
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


def of_plugins(cards: Iterable[Device], config: DialectConfig) -> dict[str, int]:
    """Return the amounts that plugins of HAMi, Volcano and Tencent register with the kubelet.

    Those of gpu-manager and of Volcano's older plugin are not in the node's status here."""
    devices = [each for each in cards if _sharable(each)]
    memory_mib = sum(device.memory_mib for device in devices)
    found = {volcano_share.MEMORY: memory_mib // config.memory_factor}
    for prefix in vcuda.PREFIXES:
        names = vcuda.Vcuda(prefix)
        found[names.cores] = vcuda.CARD * len(devices)
        found[names.memory] = memory_mib // vcuda.UNIT_MIB
    return dict.fromkeys(names_of(config), 0) | found | of_devices(devices, config)


def names_of(config: DialectConfig) -> frozenset[str]:
    """Return all extended resource names that nodes report."""
    return frozenset(
        name for each in (config.hami, config.volcano_vgpu) for name in (each.memory, each.cores)
    )


def _shared(node: NodeState) -> frozenset[str]:
    return frozenset(
        name for name, each in node.by_id.items() if each.present and _sharable(each.device)
    )


def _sharable(device: Device) -> bool:
    return device.family == nvidia.FAMILY and device.mode != WHOLE_ONLY
