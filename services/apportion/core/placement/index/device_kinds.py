"""The kinds of device: what every ask treats alike has one number.

An ask is worked out once for each kind and not for each device. Invariant: a number means the same
kind as long as the index lives, whether or not any node has one now."""

from collections.abc import Iterable
from typing import Final

from apportion.core.placement.index.packed import Int64
from apportion_schemas import Device

NO_KIND, HOST_KIND = 0, 1  # of a column beyond the last device, and of the host
NO_ID: Final = -1
FIRST_KIND: Final[Int64] = 2


class DeviceKinds:
    """Numbers from `FIRST_KIND` on; `devices` has a device of each, in their order."""

    def __init__(self) -> None:
        self._number_of: dict[tuple[object, ...], int] = {}
        self._id_numbers: dict[str, int] = {}
        self.devices: list[Device] = []
        self._counts = [0] * FIRST_KIND
        self._offered: list[Device | None] = []
        self._as_of: Int64 = -1

    def number(self, device: Device) -> int:
        """The number of devices that differ from this one in id and index at most."""
        key = (
            device.family,
            device.model,
            device.mode,
            device.memory_mib,
            device.physical_memory_mib,
            device.cores,
            device.slots,
            device.mig_sizes,
        )
        known = self._number_of.get(key)
        if known is None:
            known = self._number_of[key] = FIRST_KIND + len(self.devices)
            self.devices.append(device)
            self._counts.append(0)
        return known

    def id_number(self, name: str) -> int:
        """The number of the device of this id, by which many are compared at once."""
        return self._id_numbers.setdefault(name, len(self._id_numbers))

    def id_numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of those of these ids that have one."""
        return [self._id_numbers[name] for name in names if name in self._id_numbers]

    def count(self, numbers: Iterable[int], by: int) -> None:
        """So many more columns of the index are of each of these kinds."""
        for number in numbers:
            self._counts[number] += by

    def offered(self, as_of: Int64) -> list[Device | None]:
        """The kinds of device that there are, by number; None where no node has any (more).

        The same list as long as they are the same; `as_of` tells whether they may differ. What is
        weighed over all kinds is weighed over these, or it would depend on what there has been."""
        if as_of != self._as_of:
            self._as_of = as_of
            offered = [
                device if self._counts[number] else None
                for number, device in enumerate([*[None] * FIRST_KIND, *self.devices])
            ]
            if [device is None for device in offered] != [each is None for each in self._offered]:
                self._offered = offered
        return self._offered
