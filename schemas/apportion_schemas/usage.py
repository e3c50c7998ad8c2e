"""What shares were used for, as their node saw it: for reports of cost and of idle cards.

Samples come and go over plain messages (`UsageSample`), and stand in no ledger; once an hour the
node sums them up in an event."""

from typing import Annotated

from msgspec import Meta, Struct

from apportion_schemas.catalogue import event
from apportion_schemas.placement import MigInstance
from apportion_schemas.quantities import COUNT_MAX, Cores, MemoryMib, Name, Natural, Payload, Text

SHARES_MAX = 512
"""Of one event; a node with more says the rest in another one."""
UNSHARED_MAX = 64


class ShareUsed(Payload, frozen=True):
    """What one container used of one device.

    The share was looked at for `seconds`, and the integrals are over these: MiB and percent of the
    device's compute, times seconds. Compute is None where neither the driver nor the container's
    region tells it. `bound` is the revision of the PodBound or PodAdopted by which the pod held the
    device; 0 where the agent did not record it."""

    pod: Name
    namespace: Name
    name: Name
    container: Name
    device: Name
    seconds: Natural
    memory_mib: MemoryMib
    memory_mib_seconds: Natural
    memory_mib_peak: MemoryMib
    instance: MigInstance | None = None
    cores: Cores = 0
    cores_seconds: Natural | None = None
    cores_peak: Cores | None = None
    bound: Natural = 0


class UnsharedUsed(Payload, frozen=True):
    """A program that used a device without a share of it; `pod` is empty outside of pods."""

    device: Name
    command: Text
    seconds: Natural
    memory_mib_seconds: Natural
    memory_mib_peak: MemoryMib
    pod: Text = ""


@event("usage.{node}", "agent", born=2)
class UsageRecorded(Payload, frozen=True):
    """What was used on a node in the `seconds` before; `shares` with their size at the end."""

    node: Name
    seconds: Natural
    shares: Annotated[tuple[ShareUsed, ...], Meta(max_length=SHARES_MAX)] = ()
    unshared: Annotated[tuple[UnsharedUsed, ...], Meta(max_length=UNSHARED_MAX)] = ()


class ShareUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one container uses of one device now: MiB, and percent of the device's compute."""

    pod: Name
    namespace: Name
    name: Name
    container: Name
    device: Name
    memory_mib: MemoryMib
    memory_used_mib: MemoryMib
    cores: Cores = 0
    cores_used: Cores | None = None
    instance: MigInstance | None = None


class UnsharedUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that uses a device without a share of it."""

    device: Name
    pid: Natural
    command: Text
    memory_used_mib: MemoryMib
    pod: Text = ""


class DeviceUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is used of a whole device by whomever."""

    device: Name
    memory_used_mib: MemoryMib
    cores_used: Cores | None = None


class UsageSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at a node, in JSON on `apportion.usage.{node}`: a plain message, stored nowhere."""

    node: Name
    time: Text
    devices: Annotated[tuple[DeviceUse, ...], Meta(max_length=COUNT_MAX)] = ()
    shares: tuple[ShareUse, ...] = ()
    unshared: tuple[UnsharedUse, ...] = ()
