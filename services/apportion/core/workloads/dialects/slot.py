"""A resource that counts nothing but that a container has devices: `apportion.dev/slot`.

A kubelet asks a device plugin only about containers that name a resource which it counts. Some
dialects have none (vcuda's hundredths and units of memory, gpushare's MiB), so their containers ask
for one slot beside their amounts; the webhook writes it. Every agent offers the name.

Invariant: it never changes what a pod asks for. In a container without devices, or with a name that
is counted, it is refused: the first would never start, and the second would be prepared twice.
"""

from collections.abc import Collection, Sequence
from typing import Final

from apportion.core.workloads.dialects.container import Container
from apportion.core.workloads.dialects.errors import ManifestError

SLOT: Final = "apportion.dev/slot"


def check_slots(
    containers: Sequence[Container], asking: Collection[str], counts: Collection[str]
) -> None:
    """Refuse a slot where there is no device, or a name that counts devices (`counts`) already.

    Raises:
        ManifestError: names the container's resource.
    """
    for container in containers:
        said = {**container.requests, **container.limits}
        counted = sorted((said.keys() - {SLOT}).intersection(counts))
        if SLOT in said and (counted or container.name not in asking):
            beside = f"beside {counted[0]}" if counted else "in a container without a device"
            raise ManifestError(
                container.at("limits" if SLOT in container.limits else "requests", SLOT),
                said[SLOT],
                f"has no effect {beside}",
                "remove it" if counted else "ask for a device as well, or remove it",
            )
