"""How much containers use of their shares, for reports of cost and of idle devices.

Agents send samples (`UsageSample`) as plain messages that no ledger stores. Once an hour, the
node's agent sums them up in an event."""

from typing import Annotated

from msgspec import Meta, Struct

from apportion_schemas.catalogue import event
from apportion_schemas.placement import MigInstance
from apportion_schemas.quantities import COUNT_MAX, Cores, MemoryMib, Name, Natural, Payload, Text

SHARES_MAX = 512  # of one event; a node with more shares writes several
UNSHARED_MAX = 64


class ShareUsed(Payload, frozen=True):
    """How much one container used of one device over `seconds`, as integrals over time.

    Units are MiB-seconds, and percent-seconds of the device's compute. Compute is None if it is not
    measured. `bound` is the revision of the pod's PodBound or PodAdopted, or 0."""

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
    """How much a program without a share used of a device; `pod` is empty outside of pods."""

    device: Name
    command: Text
    seconds: Natural
    memory_mib_seconds: Natural
    memory_mib_peak: MemoryMib
    pod: Text = ""


@event("usage.{node}", "agent", born=2)
class UsageRecorded(Payload, frozen=True):
    """An agent reports the usage of shares in the last `seconds`."""

    node: Name
    seconds: Natural
    shares: Annotated[tuple[ShareUsed, ...], Meta(max_length=SHARES_MAX)] = ()
    unshared: Annotated[tuple[UnsharedUsed, ...], Meta(max_length=UNSHARED_MAX)] = ()


class ShareUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a container uses of one device now, in MiB and in percent of the device's compute."""

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
    """What a process without a share uses of a device now."""

    device: Name
    pid: Natural
    command: Text
    memory_used_mib: MemoryMib
    pod: Text = ""


class DeviceUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all processes together use of a device now."""

    device: Name
    memory_used_mib: MemoryMib
    cores_used: Cores | None = None


class UsageSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in use on one node now: a plain JSON message on `apportion.usage.{node}`."""

    node: Name
    time: Text
    devices: Annotated[tuple[DeviceUse, ...], Meta(max_length=COUNT_MAX)] = ()
    shares: tuple[ShareUse, ...] = ()
    unshared: tuple[UnsharedUse, ...] = ()
