"""A node as it would be without some of its pods, or without what keeps it off offer.

Invariant: the node and the pods stay as they are; what is given back is what the fold gives back.
"""

from collections.abc import Iterable
from copy import copy

from msgspec import structs

from apportion.core.devices.shares import release
from apportion.core.ledger.hosting import release_host
from apportion.core.ledger.state import NodeState, PodState
from apportion_schemas import RefusalCode


def without(node: NodeState, pods: Iterable[PodState]) -> NodeState:
    """A copy of the node on which these pods have ended."""
    devices = [copy(held) for held in node.devices]
    by_id = {held.device.id: copy(held) for held in node.by_id.values()}
    by_id |= {held.device.id: held for held in devices}
    left = structs.replace(
        node, devices=devices, by_id=by_id,
        pods=dict(node.pods), extended_used=dict(node.extended_used),
    )  # fmt: skip
    for pod in pods:
        for share in pod.placement.shares if pod.placement is not None else ():
            release(by_id[share.device], share)
        release_host(copy(pod), left)
    return left


def uncordoned(node: NodeState, code: RefusalCode, device: str = "") -> NodeState:
    """A copy of the node without the one cordon that this cause speaks of; all else is as it is."""
    if code is RefusalCode.DEVICE_CORDONED:
        devices = [copy(held) for held in node.devices]
        for held in devices:
            if held.device.id == device:
                held.cordon, held.cordons = "", ()
        return structs.replace(node, devices=devices)
    if code is RefusalCode.NODE_CORDONED:
        return structs.replace(node, cordon="", cordons=())
    observed = node.observed and structs.replace(node.observed, unschedulable=False)
    return structs.replace(node, observed=observed)


def on_offer(node: NodeState) -> NodeState:
    """A copy of the node without cordons, whose devices that are there are well."""
    devices = [copy(held) for held in node.devices]
    for held in devices:
        held.healthy, held.cordon, held.cordons = True, "", ()
    observed = node.observed and structs.replace(node.observed, unschedulable=False)
    return structs.replace(node, devices=devices, cordon="", cordons=(), observed=observed)
