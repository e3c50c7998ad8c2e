"""Simulated devices that fail and recover on command; see `core.devices.simulating`.

Commands arrive as NATS requests: fail or recover a device, lose or return the node. Invariant: a
command changes only the device. The agent then reports the change, as for any device."""

import asyncio
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from apportion.agent.backend import InTheWay, Kept, Load, NotMade
from apportion.core.grants import MadeInstance
from apportion.core.grants.mig import named, overlap
from apportion.runtime.ledger.port import Handler
from apportion.runtime.ledger.starting import Obeyed, Order
from apportion_schemas import Device, MigInstance
from apportion_schemas.decoding import from_outside


class DeviceUnknown(ValueError):
    """Error: the command names a device that this node does not have."""


class SimulatedBackend:
    """A `DeviceBackend` whose devices fail and recover on command."""

    driver = "simulated"
    simulated = True

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = {device.id: device for device in devices}
        self._changed = asyncio.Event()
        self.there = asyncio.Event()  # cleared while lost: no heartbeat, nothing handed out
        self.there.set()
        self._instances: dict[str, list[MigInstance]] = {}

    async def inventory(self) -> tuple[Device, ...]:
        """Return every simulated device with its health."""
        return tuple(self._devices.values())

    async def changed(self) -> None:
        """Wait until a device has failed or recovered; see `DeviceBackend.changed`."""
        await self._changed.wait()
        self._changed.clear()

    async def make_instance(
        self,
        device: str,
        wanted: MigInstance,
        needed: Collection[MigInstance],
        *,
        least_mib: int = 0,  # noqa: ARG002 - simulated instances have no memory
    ) -> MadeInstance:
        """Make or reuse a simulated MIG instance; see `DeviceBackend.make_instance`."""
        if device not in self._devices or self._devices[device].mode != "mig":
            raise NotMade(f"device {device} is not a MIG device of this node")
        there = self._instances.setdefault(device, [])
        for made in [each for each in there if each != wanted and overlap(each, wanted)]:
            if made in needed:
                raise InTheWay(f"{named(made)} occupies slices of {named(wanted)}")
            there.remove(made)
        if wanted not in there:
            there.append(wanted)
        digest = uuid.uuid5(uuid.NAMESPACE_OID, f"{device}/{wanted.profile}/{wanted.start}")
        return MadeInstance(f"MIG-{digest}")

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> Kept:
        """Destroy simulated MIG instances that are not `needed`; see `DeviceBackend`."""
        there = self._instances.get(device, [])
        gone = tuple(each for each in there if each not in needed)
        self._instances[device] = [each for each in there if each in needed]
        return Kept(gone, (), ())

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """Do nothing, because no process runs on a simulated device."""

    async def hold_memory(self, device: str, cgroup: Path, memory: int) -> bool:  # noqa: ARG002
        """Return False: no limits are simulated. Raises NotMade if the device is unknown."""
        if device not in self._devices:
            raise NotMade(f"device {device} is not on this node")
        return False

    async def loads(self) -> tuple[Load, ...]:
        """Return loads of zero, because no process runs on a simulated device."""
        loads = [Load(device, 0, 0) for device in self._devices]
        loads += [
            Load(device, 0, 0, cut) for device, there in self._instances.items() for cut in there
        ]
        return tuple(loads)

    def hung(self) -> tuple[str, ...]:
        """Return an empty tuple, because there is no driver that could hang."""
        return ()

    async def close(self) -> None:
        """Do nothing, because there is no driver to release."""

    def restore(self, known: Iterable[Device]) -> None:
        """Restore the devices' failures from the ledger after a restart of the agent."""
        for device in known:
            if device.id in self._devices and not device.healthy:
                self.set_health(device.id, healthy=False, reason=device.health_reason)

    def set_health(self, device: str, *, healthy: bool, reason: str = "") -> None:
        """Make a device fail or recover. Raises DeviceUnknown."""
        if device not in self._devices:
            known = ", ".join(self._devices) or "none"
            raise DeviceUnknown(f"device {device!r} is not on this node; devices: {known}")
        self._devices[device] = msgspec.structs.replace(
            self._devices[device], healthy=healthy, health_reason=reason
        )
        self._changed.set()


_BYTES_MAX = 4_096


_decode = from_outside(msgspec.json.Decoder(Order).decode)
_encode = msgspec.json.Encoder().encode


def obey(backend: SimulatedBackend) -> Handler:
    """Return a handler that executes the commands to one simulated node."""

    async def handle(subject: str, payload: bytes) -> bytes:  # noqa: ARG001 - one handler per node
        try:
            if len(payload) > _BYTES_MAX:
                raise DeviceUnknown(
                    f"the command has {len(payload)} bytes; the limit is {_BYTES_MAX}"
                )
            order = _decode(payload)
            match order.verb:
                case "fail":
                    backend.set_health(order.device, healthy=False, reason=order.reason)
                case "recover":
                    backend.set_health(order.device, healthy=True)
                case "lose":
                    backend.there.clear()
                case "return":
                    backend.there.set()
        except (DeviceUnknown, msgspec.DecodeError) as error:
            return _encode(Obeyed(done=False, error=str(error)))
        return _encode(Obeyed(done=True))

    return handle
