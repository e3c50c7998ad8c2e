"""What the dialects of HAMi's devices have in common: amounts, annotations and the node lock.

The rules are those that HAMi's devices share (`GenerateResourceRequests`, `MutateAdmission`, `Fit`
and `PatchAnnotations` in `pkg/device`). Memory and cores are per device. A request without memory
gets all memory of the device. Invariant: other vendors' devices of the pod are left out, because
HAMi has annotations for each vendor."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from apportion.core.workloads.dialects import chart, hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    SHARES,
    Bound,
    Dialect,
    PlacedPod,
    Resource,
    Resources,
    Selecting,
    of_family,
    record,
    segments,
    selected,
)
from apportion.core.workloads.dialects.inventory import Inventory, NodeFacts, alike, devices_of
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, Share
from apportion_schemas.quantities import WHOLE


class Names(NamedTuple):
    """The resource names of one kind of device; a kind that is never shared has only a number."""

    number: str
    memory: str = ""
    cores: str = ""

    @property
    def section(self) -> dict[str, str]:
        """Return the names by their keys in HAMi's configuration."""
        keys = ("resourceCountName", "resourceMemoryName", "resourceCoreName")
        return {key: name for key, name in zip(keys, self, strict=True) if name}


class HamiDevice(NamedTuple):
    """One kind of device that HAMi shares, by the properties that all kinds have.

    `word` is in the names of its annotations, and `type` in their values. `default_cores` is the
    percent that a request without cores gets."""

    family: str
    devices: str  # what users call them, as in "DCUs"
    names: Names
    word: str
    type: str
    selecting: Selecting = Selecting()
    unit_mib: int = 1
    default_cores: int = WHOLE
    to_allocate: bool = True  # whether the plugin takes its devices from an annotation of its own

    @property
    def allocated_key(self) -> str:
        """Return the annotation that keeps the devices of a pod."""
        return f"hami.io/{self.word}-devices-allocated"

    @property
    def to_allocate_key(self) -> str:
        """Return the annotation that the plugin removes devices from as it hands them out."""
        return f"hami.io/{self.word}-devices-to-allocate"

    @property
    def resources(self) -> Resources:
        """Return what each resource name requests, and what a limit on that name counts."""
        if not self.names.memory:
            return {self.names.number: Resource((self.family,), Bound(SHARES, self.family))}
        return of_family(self.family, self.names, unit_mib=self.unit_mib, clamps=True)

    def read(self, container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
        """Return the container's ask; None if its number of devices is missing or 0."""
        count, memory, cores = (amounts.get(name) for name in self.names)
        if count is None or count.value == 0:
            return None
        memory_mib = memory.memory_mib(self.unit_mib) if memory else None
        percent = cores.cores_percent(clamp=True) if cores else self.default_cores
        return container.ask(
            self.family, count=count.devices(self.family), memory_mib=memory_mib, cores=percent
        )

    def allocated(
        self, it: PlacedPod, recorded: Callable[[Share], str] | None = None
    ) -> dict[str, str]:
        """Return the annotations with the pod's devices of this kind; `recorded` formats one."""

        def written(share: Share) -> str:
            if it.devices[share.device].family != self.family:
                return ""
            if recorded is not None:
                return recorded(share)
            return record(share.device, self.type, share.memory_mib, min(share.cores, WHOLE))

        text = segments(it, written)
        keys = (
            (self.to_allocate_key, self.allocated_key)
            if self.to_allocate
            else (self.allocated_key,)
        )
        return hami.bound(it) | dict.fromkeys(keys, text)

    def allocated_whole(self, it: PlacedPod) -> dict[str, str]:
        """Return `allocated` with memory 0 and cores 0, as HAMi writes some whole devices."""
        return self.allocated(it, lambda share: record(share.device, self.type, 0, 0))

    def shares(self, it: PlacedPod) -> list[Share]:
        """Return the pod's shares of devices of this kind, in the order of its asks."""
        return [s for s in it.placed.shares if it.devices[s.device].family == self.family]

    def in_amounts(
        self, prefix: str, *, device_cores: int = WHOLE, rounds_up: bool = True
    ) -> Inventory:
        """Return the inventory of devices whose plugin counts only cores and units of memory.

        HAMi makes up their ids, with `prefix`."""

        def read(node: NodeFacts) -> Iterator[Device]:
            cores, memory = node.counted(self.names.cores), node.counted(self.names.memory)
            if cores:
                found = alike(
                    node,
                    -(-cores // device_cores) if rounds_up else cores // device_cores,
                    prefix,
                    devmem=memory * self.unit_mib * device_cores // cores,
                    devcore=device_cores,
                    count=100,
                    type=self.type,
                )
                yield from devices_of(found, self.family)

        return Inventory("hami", (self.names.cores,), read)

    def in_numbers(
        self, prefix: str, memory_mib: int, *, shared: Callable[[NodeFacts], object]
    ) -> Inventory:
        """Return the inventory of whole devices that the vendor's plugin only counts.

        Empty if another plugin has `shared` the node's devices."""

        def read(node: NodeFacts) -> Iterator[Device]:
            if not shared(node):
                number = node.allocatable.get(self.names.number, 0)
                found = alike(node, number, prefix, devmem=memory_mib, count=1, type=self.type)
                yield from devices_of(found, self.family, mode="exclusive")

        return Inventory("vendor", (self.names.number,), read)

    def check_section(self, known: Mapping[str, object], section: object, path: str) -> str:
        """Check that no key of this section of HAMi's configuration differs from `known`.

        Keys may be absent. Returns a note that these names are fixed. Raises ManifestError."""
        chart.same(chart.an_object(section, path), dict(known), path)
        return "these names are fixed"

    def dialect(self, name: str, *, section: Mapping[str, object] = {}, **others: Any) -> Dialect:
        """Create the dialect; `section` has the keys of HAMi's configuration section `name`."""
        count, memory, cores = self.names
        no_count = f"has no number of {self.devices}, so HAMi ignores it; write {count}: 1"
        fields: dict[str, Any] = {
            "resources": lambda _: self.resources,
            "read": self.read,
            "choose": partial(selected, keys=self.selecting),
            "reserved": dict.fromkeys(
                chain(*self.selecting), f"selects {self.devices}, but the pod requests {{devices}}"
            ),
            "render": self.allocated,
            "recover": dict.fromkeys(
                (self.allocated_key, self.to_allocate_key)[: 1 + self.to_allocate],
                hami.segments_of(self.family),
            ),
            "needs": dict.fromkeys(filter(None, (memory, cores)), (count, no_count)),
            "sections": {name: partial(self.check_section, section)} if section else {},
            "plugin": lambda _: "hami",
            "locks": {"hami": hami.LOCK},
        } | others
        return Dialect(name=name, devices=self.devices, **fields)
