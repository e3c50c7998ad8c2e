"""Builders of asks, shapes and pods, so that a test says only what it is about."""

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
    """What one container wants of NVIDIA GPUs; nothing said is a shared card's whole memory."""
    fields.setdefault("container", "main")
    fields.setdefault("family", "nvidia")
    return Ask(memory_mib=memory_mib, **fields)


def cards(count: int = 1, **fields: Any) -> Ask:
    """An ask for whole cards."""
    return ask(count=count, cores=100, **fields)


def shape(
    *asks: Ask, devices: DeviceConstraints | None = None, node: Any = None, **fields: Any
) -> Shape:
    """The asks and constraints of a pod."""
    return Shape(
        asks=asks, devices=devices or DeviceConstraints(), node=node or NodeConstraints(), **fields
    )


def pod(uid: str = "p1", *asks: Ask, **fields: Any) -> PodSubmitted:
    """A pod with these asks, or with the `shape` given."""
    fields.setdefault("shape", shape(*asks))
    fields.setdefault("dialect", "hami")
    fields.setdefault("namespace", "default")
    fields.setdefault("name", uid)
    return PodSubmitted(uid=uid, **fields)


def gang(name: str = "team/job", min_available: int = 2, **fields: Any) -> PodGroupObserved:
    """The declaration of a gang."""
    return PodGroupObserved(group=name, min_available=min_available, **fields)


def member(uid: str, *asks: Ask, group: str = "team/job", **fields: Any) -> PodSubmitted:
    """A pod of a gang."""
    return pod(uid, *asks, group=group, **fields)


def share(device: str = "g0", memory_mib: int = 1000, cores: int = 10, **fields: Any) -> Share:
    """What a container holds of one device."""
    fields.setdefault("container", "main")
    return Share(device=device, memory_mib=memory_mib, cores=cores, **fields)


def instance(profile: str, start: int, size: int) -> MigInstance:
    """A MIG instance."""
    return MigInstance(profile=profile, start=start, size=size)


def placed(
    uid: str = "p1", node: str = "n1", shares: Iterable[Share] = (), **fields: Any
) -> PodPlaced:
    """A placement as a scheduler, or whoever claims to be one, writes it."""
    fields.setdefault("namespace", "default")
    fields.setdefault("name", uid)
    fields.setdefault("attempt", 1)
    fields.setdefault("score", Score(node=node, total=1.0))
    return PodPlaced(pod=uid, node=node, shares=tuple(shares), **fields)


def wants(*asks: Ask, **fields: Any) -> Shape:
    """A shape that wants this of its node: fields of `NodeConstraints`."""
    return shape(*asks, node=NodeConstraints(**fields))
