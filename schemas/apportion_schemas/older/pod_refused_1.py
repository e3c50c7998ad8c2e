"""`PodRefused` as it was: it named no claim of a volume."""

from typing import Annotated, Any

from msgspec import Meta

from apportion_schemas.placement import (
    GangShortage,
    NearMiss,
    QueueShortage,
    QuotaShortage,
    RefusalCode,
)
from apportion_schemas.quantities import Name, Natural, Payload


class PodRefused(Payload, frozen=True):
    """No node fits. `reasons` counts nodes per code; written only when the set of codes changes, or
    the quota that is too small.

    `gang` is set for a pod whose gang could not be placed whole; the reasons are then those of the
    first member that found no place beside the others. `queue` is set where nodes have room that
    the pod's queue may not take, which is counted under its code; on no node is it counted where
    nodes were not looked at. `quota` is set where its namespace may not take it, in the same way.
    """

    pod: Name
    namespace: Name
    name: Name
    reasons: dict[RefusalCode, Natural]
    nodes: Natural
    nearest: Annotated[tuple[NearMiss, ...], Meta(max_length=8)] = ()
    gang: GangShortage | None = None
    queue: QueueShortage | None = None
    quota: QuotaShortage | None = None


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default that means what silence meant."""
    return data
