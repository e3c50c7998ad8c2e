"""Names for our DRA driver, device class and devices, and for ResourceClaims in the ledger.

Invariant: a device or share has one name, which is derived only from the ledger."""

import hashlib
import re
from typing import Final

from apportion_schemas import Device, Share

DRIVER: Final = "gpu.apportion.dev"
CLASS: Final = DRIVER  # the name of our DeviceClass
FAMILY: Final = "nvidia"
DIALECT: Final = "dra"  # the dialect of a pod that requests devices through claims
# modes of the devices that are published: all modes of this family
PUBLISHED: Final = frozenset({"hami-core", "mps", "mig", "exclusive"})
# modes in which several claims can have parts of one device
SHARED: Final = frozenset({"hami-core", "mps"})
_CLAIM: Final = "claim:"
_OTHERS = re.compile("[^a-z0-9]+")


def container_of(claim: str) -> str:
    """Return the ledger's container name for a claim's shares: `claim:` and the claim's uid."""
    return f"{_CLAIM}{claim}"


def claim_of(container: str) -> str:
    """Return the uid of the claim that this container name encodes; empty for a real container."""
    return container.removeprefix(_CLAIM) if container.startswith(_CLAIM) else ""


def card(device: Device) -> str:
    """Return the name under which a whole device is published in its node's pool."""
    return f"gpu-{device.index}"


def partition(device: Device, profile: str, start: int) -> str:
    """Return the name under which ResourceSlices offer a possible MIG instance of the device."""
    return f"{card(device)}-mig-{_OTHERS.sub('-', profile)}-{start}"


def device_of(share: Share, device: Device) -> str:
    """Return the published name of the device, or MIG instance, that the share is on."""
    if share.instance is not None:
        return partition(device, share.instance.profile, share.instance.start)
    return card(device)


def share_id(claim: str, attempt: int, position: int) -> str:
    """Return the id of one share of a claim: a UUID, always the same for the same arguments.

    `position` is the index of the share among those of the claim."""
    digest = hashlib.sha256(f"{claim}/{attempt}/{position}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"
