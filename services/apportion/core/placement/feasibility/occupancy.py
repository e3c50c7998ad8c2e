"""A node with another occupancy: empty, without some of its pods, or without a cordon.

Invariant: the node and its pods are not changed, and amounts are released as the fold does."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Final

from msgspec import structs

from apportion.core.devices.shares import DeviceState, release, template_cpu_of
from apportion.core.ledger.host_usage import release_host
from apportion.core.ledger.state import DEVICE_PLUGIN, NodeState, PodState
from apportion_schemas import Device, NodeObserved, RefusalCode

Occupancy = Callable[[NodeState], NodeState]
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
# taints that Kubernetes adds for a condition or a cordon, and removes when it ends
CONDITIONS: Final = frozenset((
    UNSCHEDULABLE, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure", "node.kubernetes.io/network-unavailable",
))  # fmt: skip


def now(node: NodeState) -> NodeState:
    """The node as it is."""
    return node


def empty(node: NodeState) -> NodeState:
    """Return the node with nothing on it: ready, its agent reporting, without cordons."""
    devices = [empty_device(held.device) for held in node.devices]
    return structs.replace(
        node,
        devices=devices,
        by_id={held.device.id: held for held in devices},
        pods={},
        observed=node.observed and mended(node.observed),
        cordon="",
        cordons=(),
        cpu_used_milli=0,
        memory_used_mib=0,
        extended_used={},
        silent="",
    )


def empty_device(device: Device) -> DeviceState:
    """Return the state of the device with nothing on it and no closed slices."""
    return DeviceState(
        device=structs.replace(device, closed_slices=0) if device.closed_slices else device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
    )


def mended(observed: NodeObserved) -> NodeObserved:
    """Return the observed node, ready again and without pods of other schedulers."""
    return structs.replace(
        observed,
        ready=True,
        unschedulable=False,
        taints=tuple(each for each in observed.taints if each.key not in CONDITIONS),
        labels={key: value for key, value in observed.labels.items() if key != DEVICE_PLUGIN},
        unhealthy_indexes=(),
        unnamed_families=(),
        others=(),
    )


def without(pods: Iterable[PodState]) -> Occupancy:
    """Return the occupancy of a node after these pods have ended."""
    ended = tuple(pods)

    def occupancy(node: NodeState) -> NodeState:
        devices = [copy(held) for held in node.devices]
        by_id = {held.device.id: copy(held) for held in node.by_id.values()}
        by_id |= {held.device.id: held for held in devices}
        left = structs.replace(
            node, devices=devices, by_id=by_id,
            pods=dict(node.pods), extended_used=dict(node.extended_used),
        )  # fmt: skip
        for pod in ended:
            for share in pod.placement.shares if pod.placement is not None else ():
                release(by_id[share.device], share)
            release_host(copy(pod), left)
        return left

    return occupancy


def uncordoned(code: RefusalCode, device: str = "") -> Occupancy:
    """Return the occupancy without the one cordon that causes this refusal."""

    def occupancy(node: NodeState) -> NodeState:
        if code is RefusalCode.DEVICE_CORDONED:
            devices = [copy(held) for held in node.devices]
            for held in devices:
                if held.device.id == device:
                    held.cordon, held.cordons = "", ()
            return structs.replace(node, devices=devices)
        if code is RefusalCode.NODE_CORDONED:
            return structs.replace(node, cordon="", cordons=())
        return structs.replace(node, observed=node.observed and _schedulable(node.observed))

    return occupancy


def on_offer(node: NodeState) -> NodeState:
    """Return the node without cordons and with all reported devices healthy."""
    devices = [copy(held) for held in node.devices]
    for held in devices:
        held.healthy, held.cordon, held.cordons = True, "", ()
    observed = node.observed and _schedulable(node.observed)
    return structs.replace(node, devices=devices, cordon="", cordons=(), observed=observed)


def _schedulable(observed: NodeObserved) -> NodeObserved:
    taints = tuple(each for each in observed.taints if each.key != UNSCHEDULABLE)
    return structs.replace(observed, unschedulable=False, taints=taints)
