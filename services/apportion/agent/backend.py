"""The interface through which an agent reads and changes its node's devices, of any vendor.

Invariant: `inventory` is complete at the time of the call, and `changed` returns whenever the
inventory may have changed. So an agent that reports after each `changed` misses no change."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from apportion.core.grants import MadeInstance
from apportion_schemas import Device, MigInstance


class DevicesUnavailable(Exception):
    """Error: the node's devices cannot be read. The message names the failed call and the fix."""


class NotMade(Exception):
    """Error: a device cannot be brought into the state that a share needs. The message says why."""


class InTheWay(NotMade):
    """Error: the device cannot be prepared until a conflicting MIG instance is released."""


class Running(NamedTuple):
    """A process on a device: memory in bytes and percent of compute, None where not reported."""

    pid: int
    memory: int | None
    cores: int | None


class Load(NamedTuple):
    """The use of a device or of one MIG instance: memory in bytes, and percent of the compute."""

    device: str
    memory: int
    cores: int | None
    instance: MigInstance | None = None
    # the processes of a device with MIG instances are in its instances' loads
    processes: tuple[Running, ...] = ()


class Kept(NamedTuple):
    """The MIG instances of a device that `keep_instances` destroyed, and those that it left."""

    gone: tuple[MigInstance, ...]  # destroyed
    held: tuple[MigInstance, ...]  # not needed, but in use according to the driver
    foreign: tuple[MigInstance, ...]  # not made by this agent, so never destroyed


class DeviceBackend(Protocol):
    """Reads the inventory, health and use of one node's devices, and partitions the devices."""

    @property
    def driver(self) -> str:
        """Return the driver's version for display, or an empty string if unknown."""

    @property
    def simulated(self) -> bool:
        """Return True if the devices are simulated."""

    async def inventory(self) -> tuple[Device, ...]:
        """Return every device with its health, sorted by index. Raises DevicesUnavailable."""

    async def changed(self) -> None:
        """Wait until the inventory may have changed since the last call."""

    def hung(self) -> tuple[str, ...]:
        """Return the names of devices whose driver call has not returned, for display."""

    async def make_instance(
        self,
        device: str,
        wanted: MigInstance,
        needed: Collection[MigInstance],
        *,
        least_mib: int = 0,
    ) -> MadeInstance:
        """Create the MIG instance `wanted`, or reuse it if this agent created it earlier.

        Destroys this agent's conflicting instances. Raises InTheWay if a conflicting instance is
        `needed` or in use. Raises NotMade if the instance is impossible, has less memory than
        `least_mib` (the share's memory in the ledger), or conflicts with another program's
        instance. Raises OSError if the agent cannot record the instance on disk."""

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> Kept:
        """Destroy the device's MIG instances that this agent created and that are neither `needed`
        nor in use. Raises NotMade, OSError."""

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """Allow one process at a time if `exclusive`, else any number. Raises NotMade."""

    async def hold_memory(self, device: str, cgroup: Path, memory: int) -> bool:
        """Limit the processes of the cgroup in folder `cgroup` to `memory` bytes of the device.

        Return True if the driver enforces the limit, False if the driver has no such limits.
        Raises NotMade if the driver refuses this limit, or if the device is not on this node."""

    async def loads(self) -> tuple[Load, ...]:
        """Return the current use of every device that answers, and of its MIG instances."""

    async def close(self) -> None:
        """Release the driver. The backend cannot be used afterwards."""
