"""What a dialect needs to read the devices that its system's plugin registers on a node.

HAMi's plugins write an annotation of the node: JSON, or an older text with fields between commas
(`pkg/device/common`). Invariant: what `devices_of` returns is within the bounds of the schema."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import DEVICE_PLUGIN, Device, Plugin
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX, WHOLE

UNHEALTHY: Final = "its device plugin reports it as unhealthy"
SLOTS_MAX: Final = 250
_NUMA_MAX: Final = 1023
_CHARACTERS_MAX: Final = 256 << 10  # as the API server limits all annotations of an object
WHOLE_ONLY: Final[Mapping[str, Any]] = {"mode": "exclusive", "cores": WHOLE, "slots": 1}
"""The fields of devices that are never shared, whatever their plugin registers as cores."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,12}")


class NodeFacts(NamedTuple):
    """A node as Kubernetes has it; amounts are by resource name, as whole numbers."""

    name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    config: DialectConfig
    capacity: Mapping[str, int]

    def allowed(self, name: str) -> None:
        """Require that the label `DEVICE_PLUGIN` lets Apportion place pods there. Raises Unread.

        This is needed if a plugin only counts the devices, and pods have an annotation that chooses
        among them: HAMi's scheduler could choose the same ones."""
        if self.labels.get(DEVICE_PLUGIN) not in {"hami", "vendor"}:
            label = f"{DEVICE_PLUGIN}=vendor"
            raise Unread(f"{name} needs the label {label}, and no other scheduler on this node")

    def counted(self, name: str) -> int:
        """Return the node's capacity of a resource, or 0 if nothing of it is allocatable.

        The capacity includes unhealthy devices. HAMi makes up devices from it, so that their
        indexes and amounts stay the same while one of them fails."""
        return self.capacity.get(name, 0) if self.allocatable.get(name) else 0

    def text(self, key: str) -> str:
        """Return an annotation, empty if absent. Raises Unread if it is too long."""
        text = self.annotations.get(key, "")
        if len(text) > _CHARACTERS_MAX:
            raise Unread(f"{key} is longer than {_CHARACTERS_MAX} characters")
        return text

    def runs(self, *names: str) -> None:
        """Require that the kubelet reports these resources. Raises Unread.

        If a plugin is removed, its annotation remains, but the kubelet no longer reports its
        resources."""
        missing = next((name for name in names if not self.allocatable.get(name)), None)
        if missing is not None:
            raise Unread(f"the kubelet reports no {missing}, so the plugin does not run")


class Inventory(NamedTuple):
    """How to read the devices that the plugins of one system offer on a node.

    `read` raises `Unread`. It yields nothing on nodes without any of the `marks`, which are names
    of annotations or resources."""

    plugin: Plugin
    marks: tuple[str, ...]
    read: Callable[[NodeFacts], Iterator[Device]]


class Unread(ValueError):
    """Raised with the reason if what a plugin registered cannot be read."""


class MigPlace(Struct, frozen=True):
    """The first memory slice of a MIG instance, and how many it has, as the driver reports them."""

    start: int = 0
    size: int = 0


class RegisteredProfile(Struct, frozen=True):
    """A MIG profile that HAMi's plugin (2.10 and newer) offers.

    `placements` are the places on the GPU that the driver allows for it."""

    name: str
    memory_mib: int = field(name="memoryMB", default=0)
    placements: tuple[MigPlace, ...] = ()


class Entry(Struct, frozen=True):
    """One device of a registration, with HAMi's JSON names. An absent `health` is unhealthy."""

    id: str
    index: int = 0
    count: int = 0
    devmem: int = 0  # MiB
    devcore: int = 0
    type: str = ""
    numa: int = -1
    mode: str = ""
    health: bool = False
    mig_profiles: tuple[RegisteredProfile, ...] = field(name="migProfiles", default=())
    custominfo: dict[str, Any] = {}


def readable(text: str) -> bool:
    """Return True if an annotation registers any device."""
    return bool(text.strip(" []:"))


def decoded(decode: Callable[[str], Any], key: str, text: str) -> Any:
    """Return the decoded annotation `key`. Raises Unread."""
    try:
        return decode(text)
    except msgspec.MsgspecError as error:
        raise Unread(f"{key} cannot be read: {error}") from None


_decode = from_outside(msgspec.json.Decoder(list[Entry]).decode)
# Fields of one device in HAMi's encoding before 2.8, and since 2.5 with index and mode.
_SHORT, _LONG = 7, 9


def entries_of(key: str, text: str) -> Iterator[Entry]:
    """Yield the devices in an annotation of HAMi, in either encoding. Raises Unread."""
    if text.lstrip().startswith("["):
        yield from decoded(_decode, key, text)
        return
    for position, item in enumerate(filter(None, text.split(":"))):
        parts = item.split(",")
        if len(parts) not in (_SHORT, _LONG):
            raise Unread(f"{key} has {len(parts)} fields instead of {_SHORT} or {_LONG}")
        name, count, memory, cores, kind, numa, health = parts[:_SHORT]
        index, mode = parts[_SHORT:] or (str(position), "")
        yield Entry(
            name, number(index), number(count), number(memory), number(cores), kind,
            number(numa), mode, health == "true",
        )  # fmt: skip


def number(text: str) -> int:
    """Parse a whole number. Raises Unread."""
    if not _NUMBER.fullmatch(text):
        raise Unread(f"{text[:40]!r} is not a whole number")
    return int(text)


def devices_of(
    entries: Sequence[Entry],
    family: str,
    made: Callable[[Entry], dict[str, Any]] | None = None,
    **same: Any,
) -> Iterator[Device]:
    """Yield the registered devices, which are of this family.

    By default, a device's fields are those of its entry. `same` replaces fields of all devices, and
    `made` returns the fields to replace for one entry. Raises Unread for too many devices, two with
    one id, or an amount that no device has."""
    if len(entries) > COUNT_MAX:
        raise Unread(f"{len(entries)} devices are registered, but at most {COUNT_MAX} can be")
    if len({each.id for each in entries}) != len(entries):
        raise Unread("a device id is registered twice")
    indexes = [each.index for each in entries]
    # HAMi's oldest encoding has no index; the devices are then in the order of their indexes.
    if len(set(indexes)) != len(indexes) or not all(0 <= at < COUNT_MAX for at in indexes):
        indexes = list(range(len(entries)))
    for index, each in zip(indexes, entries, strict=True):
        fields: dict[str, Any] = {
            "id": each.id,
            "index": index,
            "family": family,
            "model": each.type[:NAME_MAX] or family,
            "memory_mib": each.devmem,
            "cores": each.devcore,
            "slots": min(max(each.count, 1), SLOTS_MAX),
            "numa": each.numa if 0 <= each.numa <= _NUMA_MAX else None,
            "healthy": each.health,
            "health_reason": "" if each.health else UNHEALTHY,
        }
        fields |= same | (made(each) if made else {})
        fields = {"physical_memory_mib": fields["memory_mib"]} | fields
        try:
            yield msgspec.convert(fields, Device)
        except msgspec.ValidationError as error:
            raise Unread(f"device {each.id[:40]!r} cannot be used: {error}") from None


def in_annotation(
    key: str,
    family: str,
    count: str,
    made: Callable[[Entry], dict[str, Any]] | None = None,
    **same: Any,
) -> Inventory:
    """Return the inventory in one annotation of HAMi, whose plugin offers the resource `count`.

    `made` and `same` are those of `devices_of`."""

    def read(node: NodeFacts) -> Iterator[Device]:
        if readable(text := node.text(key)):
            entries = list(entries_of(key, text))
            node.runs(count)
            yield from devices_of(entries, family, made, **same)

    return Inventory("hami", (key,), read)


def alike(node: NodeFacts, devices: int, prefix: str, **fields: Any) -> list[Entry]:
    """Return made-up entries for devices of which the plugin reports only the number.

    As in HAMi, each id consists of the node's name, `prefix` and the index. Raises Unread if there
    are too many devices."""
    if devices > COUNT_MAX:
        raise Unread(f"{devices} devices are offered, but at most {COUNT_MAX} can be")
    common = {"devcore": WHOLE, "health": True} | fields
    return [Entry(id=f"{node.name}-{prefix}-{at}", index=at, **common) for at in range(devices)]
