"""What a placement gives a claim, as the claim's `status.allocation`.

Invariant: two allocations of one placement are the same, so it can be seen whether it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apportion.core.dra.names import DRIVER, SHARED, device_of, share_id
from apportion.core.dra.requests import ResourceClaim, Result, requests_of
from apportion_schemas import Device, Share

Json = dict[str, Any]


class NotOfClaim(ValueError):
    """The shares are not what the claim asks for; the message says so."""


def allocation(
    claim: ResourceClaim,
    shares: Sequence[Share],
    devices: Mapping[str, Device],
    *,
    node: str,
    attempt: int,
) -> Json:
    """The claim's allocation on the node; `devices` are the node's by their id.

    Raises:
        NotOfClaim: these are not the shares of this claim.
        KeyError: a share is of a device that the node has not.
    """
    requests = requests_of(claim)
    if len(requests) != len(shares):
        raise NotOfClaim(
            f"claim {claim.key} asks for {len(requests)} devices, and its pod was given "
            f"{len(shares)} for it"
        )
    results = []
    for position, (request, share) in enumerate(zip(requests, shares, strict=True)):
        device = devices[share.device]
        result: Json = {
            "request": request,
            "driver": DRIVER,
            "pool": node,
            "device": device_of(share, device),
        }
        if device.mode in SHARED:
            result["shareID"] = share_id(claim.metadata.uid, attempt, position)
            result["consumedCapacity"] = {
                "memory": f"{share.memory_mib}Mi",
                "cores": str(share.cores),
                "slots": "1",
            }
        results.append(result)
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
    }


def is_allocated(claim: ResourceClaim, wanted: Json) -> bool:
    """Whether the claim has this very allocation."""
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in claim.results] == [
        (each["request"], each["driver"], each["pool"], each["device"], each.get("shareID", ""))
        for each in wanted["devices"]["results"]
    ]


def of_ours(results: Sequence[Result]) -> bool:
    """Whether all of an allocation is ours to take back."""
    return bool(results) and all(each.driver == DRIVER for each in results)
