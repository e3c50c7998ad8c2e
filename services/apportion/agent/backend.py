"""What an agent needs of the devices of its node, of any vendor.

Two implementations stand behind this port: `nvml` asks the driver, `simulated` makes cards up. One
contract suite runs over both. Invariant: `inventory` says the whole truth at the moment of the
call, and `changed` returns whenever it may say something else, so an agent that reports after each
`changed` never misses a change; it may look once too often."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from apportion.core.grants import MadeInstance
from apportion_schemas import Device, MigInstance


class DevicesUnavailable(Exception):
    """The devices of this node cannot be read; the message says what was tried and the fix."""


class NotMade(Exception):
    """A device cannot be brought into the state that a share needs; the message says why."""


class InTheWay(NotMade):
    """It can be, once something else has let go of the device."""


class Running(NamedTuple):
    """A process on a device, by its id on this machine: bytes, and percent of the compute.

    Either is None where the driver does not tell."""

    pid: int
    memory: int | None
    cores: int | None


class Load(NamedTuple):
    """What is used of a device, or of one MIG instance: bytes, and percent of its compute.

    The processes of a device that is cut are in the loads of its instances."""

    device: str
    memory: int
    cores: int | None
    instance: MigInstance | None = None
    processes: tuple[Running, ...] = ()


class Kept(NamedTuple):
    """What a round did with the MIG instances of a device.

    `gone` are destroyed; `held` are to go, and the driver says that they are in use; `foreign` were
    made by another program or a person, and stay."""

    gone: tuple[MigInstance, ...]
    held: tuple[MigInstance, ...]
    foreign: tuple[MigInstance, ...]


class DeviceBackend(Protocol):
    """The devices of one node, their health, and what can be made of them."""

    @property
    def driver(self) -> str:
        """The driver's version, for people; empty where it is not known."""

    @property
    def simulated(self) -> bool:
        """Whether these devices exist only here."""

    async def inventory(self) -> tuple[Device, ...]:
        """Every device with its present health, in the order of its index.

        Raises DevicesUnavailable: the devices cannot be listed at all."""

    async def changed(self) -> None:
        """Return when the inventory may differ from what it was at the last call."""

    def hung(self) -> tuple[str, ...]:
        """What a call into the driver is about that has not returned: devices, for people."""

    async def make_instance(
        self,
        device: str,
        wanted: MigInstance,
        needed: Collection[MigInstance],
        *,
        least_mib: int = 0,
    ) -> MadeInstance:
        """Have the MIG instance there; one of ours that is there already is taken as it is.

        What stands in its way is destroyed if this agent made it, unless it is `needed` or
        something runs on it. `least_mib` is the memory that the ledger charges for the share.

        Raises InTheWay: something needed or used is there. Raises NotMade: it cannot be there, it
        would have less memory than `least_mib`, or an instance is there that this agent did not
        make. Raises OSError: it cannot be noted as ours."""

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> Kept:
        """Destroy the others that this agent made and on which nothing runs.

        Raises NotMade: the device cannot be asked. Raises OSError: what is ours cannot be noted."""

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """Let one process at a time use the device, as MPS wants it, or any number.

        Raises NotMade: the driver refuses it."""

    async def hold_memory(self, device: str, cgroup: Path, memory: int) -> bool:
        """Let the processes of a cgroup, whose folder this is, have so many bytes of the device.

        Whether the driver holds them to it; False where it has no such limits.

        Raises NotMade: it has them, and refuses this one; the device is not here."""

    async def loads(self) -> tuple[Load, ...]:
        """What is used now of every device that answers, and of its MIG instances."""

    async def close(self) -> None:
        """Let the driver go. The backend is of no use afterwards."""
