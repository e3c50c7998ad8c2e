"""What our driver, its class and its devices are called, and what a claim is called in the ledger.

Invariant: a device, and a share of it, has one name for whoever publishes, allocates or prepares
it, made of nothing but what the ledger has."""

import hashlib
import re
from typing import Final

from apportion_schemas import Device, Share

DRIVER: Final = "gpu.apportion.dev"
CLASS: Final = DRIVER
"""The name of our DeviceClass."""
FAMILY: Final = "nvidia"
DIALECT: Final = "dra"
"""What a pod is written in that asks for devices by claims."""
PUBLISHED: Final = frozenset({"hami-core", "mps", "mig", "exclusive"})
"""Modes of the devices that are published: all of this family's."""
SHARED: Final = frozenset({"hami-core", "mps"})
"""Modes in which several claims have parts of one device."""
_CLAIM: Final = "claim:"
_OTHERS = re.compile("[^a-z0-9]+")


def container_of(claim: str) -> str:
    """What stands in the ledger for the containers that use a claim, by the claim's uid.

    A colon is in no container's name."""
    return f"{_CLAIM}{claim}"


def claim_of(container: str) -> str:
    """The uid of the claim that is meant by a container of the ledger; empty where none is."""
    return container.removeprefix(_CLAIM) if container.startswith(_CLAIM) else ""


def card(device: Device) -> str:
    """A card's name in its node's pool."""
    return f"gpu-{device.index}"


def partition(device: Device, profile: str, start: int) -> str:
    """The name of one MIG instance that can be made of the card."""
    return f"{card(device)}-mig-{_OTHERS.sub('-', profile)}-{start}"


def device_of(share: Share, device: Device) -> str:
    """The name of the device that a share is of."""
    if share.instance is not None:
        return partition(device, share.instance.profile, share.instance.start)
    return card(device)


def share_id(claim: str, attempt: int, position: int) -> str:
    """What tells a share of a device from others of it: the same whoever asks, as a UUID.

    `position` is that of the share among those of the claim."""
    digest = hashlib.sha256(f"{claim}/{attempt}/{position}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"
