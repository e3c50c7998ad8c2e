"""Give a number to each kind of device; devices that every ask treats alike share a kind.

What an ask needs is computed once per kind, not per device. Invariant: a number keeps its meaning
as long as the index exists."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from apportion.core.placement.index.packed import Int64
from apportion_schemas import Device

NO_KIND, HOST_KIND = 0, 1  # of a column beyond the last device, and of the host
NO_ID: Final = -1
FIRST_KIND: Final[Int64] = 2
_kind_of = attrgetter(
    "family", "model", "mode", "memory_mib", "physical_memory_mib", "cores", "slots", "mig_sizes"
)


class DeviceKinds:
    """Assigns a number to each kind of device."""

    def __init__(self) -> None:
        self._number_of: dict[tuple[object, ...], int] = {}
        self._id_numbers: dict[str, int] = {}
        self.devices: list[Device] = []  # one example of each kind
        self._counts = [0] * FIRST_KIND
        self._offered: list[Device | None] = []
        self._as_of: Int64 = -1

    def number(self, device: Device) -> int:
        """Return the number shared by all devices that differ only in id and index."""
        key = _kind_of(device)
        known = self._number_of.get(key)
        if known is None:
            known = self._number_of[key] = FIRST_KIND + len(self.devices)
            self.devices.append(device)
            self._counts.append(0)
        return known

    def id_number(self, name: str) -> int:
        """Return a number for the device id; numbers are compared faster than ids."""
        return self._id_numbers.setdefault(name, len(self._id_numbers))

    def id_numbers(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of these ids; leave out ids without a number."""
        return [self._id_numbers[name] for name in names if name in self._id_numbers]

    def count(self, numbers: Iterable[int], by: int) -> None:
        """Add `by` to the number of existing devices of each of these kinds."""
        for number in numbers:
            self._counts[number] += by

    def offered(self, as_of: Int64) -> list[Device | None]:
        """Return an example device of each kind, by number; None for a kind that no node has.

        The list is the same object until kinds change. If they may have changed, raise `as_of`.
        """
        if as_of != self._as_of:
            self._as_of = as_of
            offered = [
                device if self._counts[number] else None
                for number, device in enumerate([*[None] * FIRST_KIND, *self.devices])
            ]
            if [device is None for device in offered] != [each is None for each in self._offered]:
                self._offered = offered
        return self._offered
