"""`NodeObserved` as it was: it did not say which pods of others are being deleted."""

from typing import Annotated, Any

from msgspec import Meta

from apportion_schemas.cluster import Taint
from apportion_schemas.quantities import (
    COUNT_MAX,
    CpuMilli,
    HostMemoryMib,
    Index,
    Key,
    Labels,
    Name,
    Natural,
    Payload,
)
from apportion_schemas.workload import Disk, HostPort, Names, PodTerms


class Neighbour(Payload, frozen=True):
    """Pods on a node that others placed there, `count` of them alike, as far as pods of ours mind.

    They are of one namespace and have the same labels, host ports, disks, volume claims and
    required anti-affinity, which keeps pods away that come after them.
    """

    namespace: Name
    labels: Labels = {}
    count: Annotated[int, Meta(ge=1, le=4096)] = 1
    ports: Annotated[tuple[HostPort, ...], Meta(max_length=256)] = ()
    anti_affinity: PodTerms = ()
    disks: Annotated[tuple[Disk, ...], Meta(max_length=256)] = ()
    volume_claims: Names = ()


class NodeObserved(Payload, frozen=True):
    """A node of the cluster; amounts are `status.allocatable` less what other schedulers placed.

    `unhealthy_indexes` are the devices of the annotation `volcano.sh/gpu-unhealthy-ids`.
    `unnamed_families` are families of devices of which pods of other schedulers hold some that
    nobody names, so that none of them can be offered.
    `version` is the API server's revision as of which this is so; of two writers, the one with the
    lower version has nothing to say. 0 where there is no API server. `others` are the pods that
    other schedulers placed there. `volume_limits`: by CSI driver, how many volumes of it the node
    can have attached (`spec.drivers[].allocatable.count` of its CSINode).
    """

    node: Name
    ready: bool
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    pods: Natural
    extended: dict[Key, Natural] = {}
    labels: Labels = {}
    taints: Annotated[tuple[Taint, ...], Meta(max_length=256)] = ()
    unschedulable: bool = False
    unhealthy_indexes: Annotated[tuple[Index, ...], Meta(max_length=COUNT_MAX)] = ()
    version: Natural = 0
    unnamed_families: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    others: Annotated[tuple[Neighbour, ...], Meta(max_length=1024)] = ()
    volume_limits: dict[Key, Natural] = {}


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default that means what silence meant."""
    return data
