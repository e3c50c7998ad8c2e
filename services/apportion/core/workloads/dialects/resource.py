"""What a resource name of a dialect means: which devices, and what a limit of it counts.

Invariant: a limit counts what pods hold, by whichever names they asked for it, so that no dialect
is a way around it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

SHARES: Final = "shares"
DEVICE_MEMORY: Final = "device memory"
CORES: Final = "cores"
ENTIRE: Final = "entire devices"
PARTIAL_MEMORY: Final = "memory of partial shares"
INSTANCES: Final = "instances"
COUNTED: Final = (SHARES, DEVICE_MEMORY, CORES, ENTIRE, PARTIAL_MEMORY, INSTANCES)
"""What can be counted of devices: instances by their profile, all else by family."""


class Bound(NamedTuple):
    """What a limit of a resource counts: one of `COUNTED`, of a family or of a profile.

    One of the resource is `unit` of that: devices, MiB or percent.
    """

    counts: str
    of: str
    unit: int = 1


class Resource(NamedTuple):
    """The families of devices that a name is about, and what a limit of it counts.

    `bound` is None where a limit has no meaning, as of a priority.
    """

    families: tuple[str, ...]
    bound: Bound | None = None


Resources = Mapping[str, Resource]
"""By name."""


def of_family(
    family: str, *, count: str, memory: str, cores: str, unit_mib: int = 1
) -> dict[str, Resource]:
    """The usual three names of a family: devices, memory in units of so many MiB, and cores."""
    return {
        count: Resource((family,), Bound(SHARES, family)),
        memory: Resource((family,), Bound(DEVICE_MEMORY, family, unit_mib)),
        cores: Resource((family,), Bound(CORES, family)),
    }
