"""Build device requests, shapes and pods, so that a test states only the fields that matter."""

from collections.abc import Iterable
from typing import Any

from apportion_schemas import (
    Ask,
    DeviceConstraints,
    MigInstance,
    NodeConstraints,
    PodGroupObserved,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
)


def ask(memory_mib: int | None = None, **fields: Any) -> Ask:
    """Return a container's request for NVIDIA GPUs; by default all memory of one shared GPU."""
    fields.setdefault("container", "main")
    fields.setdefault("family", "nvidia")
    return Ask(memory_mib=memory_mib, **fields)


def cards(count: int = 1, **fields: Any) -> Ask:
    """Return a request for whole GPUs."""
    return ask(count=count, cores=100, **fields)


def shape(
    *asks: Ask, devices: DeviceConstraints | None = None, node: Any = None, **fields: Any
) -> Shape:
    """Return a pod's shape: its device requests and its constraints on devices and nodes."""
    return Shape(
        asks=asks, devices=devices or DeviceConstraints(), node=node or NodeConstraints(), **fields
    )


def pod(uid: str = "p1", *asks: Ask, **fields: Any) -> PodSubmitted:
    """Return a pod with these requests, or with the given `shape`."""
    fields.setdefault("shape", shape(*asks))
    fields.setdefault("dialect", "hami")
    fields.setdefault("namespace", "default")
    fields.setdefault("name", uid)
    return PodSubmitted(uid=uid, **fields)


def gang(name: str = "team/job", min_available: int = 2, **fields: Any) -> PodGroupObserved:
    """Return the event that declares a gang.

    At least `min_available` of its pods must be placed together."""
    return PodGroupObserved(group=name, min_available=min_available, **fields)


def member(uid: str, *asks: Ask, group: str = "team/job", **fields: Any) -> PodSubmitted:
    """Return a pod of the gang `group` with these requests."""
    return pod(uid, *asks, group=group, **fields)


def share(device: str = "g0", memory_mib: int = 1000, cores: int = 10, **fields: Any) -> Share:
    """Return a container's share of one device, with this memory and percentage of cores."""
    fields.setdefault("container", "main")
    return Share(device=device, memory_mib=memory_mib, cores=cores, **fields)


def instance(profile: str, start: int, size: int) -> MigInstance:
    """Return a MIG instance of this profile at these memory slices."""
    return MigInstance(profile=profile, start=start, size=size)


def placed(
    uid: str = "p1", node: str = "n1", shares: Iterable[Share] = (), **fields: Any
) -> PodPlaced:
    """Return a scheduler's placement of a pod."""
    fields.setdefault("namespace", "default")
    fields.setdefault("name", uid)
    fields.setdefault("attempt", 1)
    fields.setdefault("score", Score(node=node, total=1.0))
    return PodPlaced(pod=uid, node=node, shares=tuple(shares), **fields)


def wants(*asks: Ask, **fields: Any) -> Shape:
    """Return a shape with these requests. Its node must meet the `NodeConstraints` in `fields`."""
    return shape(*asks, node=NodeConstraints(**fields))
