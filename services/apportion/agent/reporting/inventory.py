"""Which events bring the ledger from what it says of a node to what is so.

Pure, so that a restart, a second agent and a repetition come to the same events with the same ids.
Invariant: nothing differs, nothing is written; and an event's id is a digest of its content and of
the revision it follows, so writing it twice is writing it once.
"""

from __future__ import annotations

import hashlib

import msgspec

from apportion.agent.reporting.view import NodeView
from apportion_schemas import Device, DeviceHealthChanged, NodeReported
from apportion_schemas.quantities import Payload

_encode = msgspec.json.Encoder(order="sorted").encode


def news(view: NodeView, now: NodeReported) -> list[Payload]:
    """What to append: nothing, the health changes if nothing else differs, or a whole report.

    It is whole, too, where people are told that one was refused: it ends that.
    """
    said = view.said
    if said == now and not view.refused:
        return []
    if view.refused or said is None or _as_if_well(said) != _as_if_well(now):
        return [now]
    return [
        DeviceHealthChanged(
            node=now.node,
            device=device.id,
            healthy=device.healthy,
            reason=device.health_reason,
        )
        for device, before in zip(now.devices, said.devices, strict=True)
        if device != before
    ]


def event_id(data: Payload, follows: int) -> str:
    """The id of an inventory event that comes after revision `follows` of its subject."""
    digest = hashlib.sha256(_encode(data)).hexdigest()[:32]
    return f"{type(data).__name__}/{follows}/{digest}"


def _as_if_well(report: NodeReported) -> NodeReported:
    return msgspec.structs.replace(report, devices=tuple(_well(d) for d in report.devices))


def _well(device: Device) -> Device:
    return msgspec.structs.replace(device, healthy=True, health_reason="")
