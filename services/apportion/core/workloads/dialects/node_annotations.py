"""Read the node annotations in which HAMi and Volcano describe a node's devices.

Volcano's old device plugin marks unhealthy GPUs; the plugins of HAMi and Volcano register their
devices. Invariant: what is returned is within the bounds of the event schema. A registration that
cannot be read has no devices and a problem, so no device is offered by mistake."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from apportion.core.devices.catalogue import NVIDIA
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Device, Mode, Plugin
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX, TEXT_MAX

UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
HAMI_NVIDIA: Final = "hami.io/node-nvidia-register"
VOLCANO_NVIDIA: Final = "volcano.sh/node-vgpu-register"
MIG_PROBLEM: Final = "a GPU in MIG mode is only offered by Apportion's agent"
UNHEALTHY: Final = "its device plugin reports it as unhealthy"
_REGISTERED: Final = re.compile(r"(hami\.io|volcano\.sh)/node-(register-.+|.+-register)")
_PREFIX: Final = "NVIDIA-"
_DIGITS_MAX: Final = 3
_NUMBER: Final = re.compile(r"-?[0-9]{1,12}")
_SLOTS_MAX: Final = 250
_NUMA_MAX: Final = 1023
_CHARACTERS_MAX: Final = 256 << 10  # as the API server limits all annotations of an object
_MODES: Final[Mapping[str, Mode]] = {
    "": "hami-core", "hami-core": "hami-core", "mps": "mps", "mig": "mig"
}  # fmt: skip


def unhealthy_indexes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indexes of devices that the node's annotations mark as unhealthy, as in `1,3`."""
    words = (word.strip() for word in annotations.get(UNHEALTHY_IDS, "").split(","))
    numbers = (int(w) for w in words if w.isascii() and w.isdecimal() and len(w) <= _DIGITS_MAX)
    return tuple(sorted({number for number in numbers if number < COUNT_MAX}))


class Registration(NamedTuple):
    """What another system's device plugin registered on a node; see `DevicesRegistered`."""

    plugin: Plugin = ""
    devices: tuple[Device, ...] = ()
    problem: str = ""


class _Entry(Struct, frozen=True):
    """One device of a registration, with HAMi's JSON names. An absent `health` is unhealthy."""

    id: str
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = -1
    mode: str = ""
    health: bool = False


_decode = from_outside(msgspec.json.Decoder(list[_Entry]).decode)


class _Unread(ValueError):
    """Raised with the reason if a registration cannot be read."""


def registration(
    annotations: Mapping[str, str], allocatable: Mapping[str, int], config: DialectConfig
) -> Registration:
    """Return the devices in the annotation of HAMi's or Volcano's device plugin for NVIDIA GPUs.

    The annotation remains when the plugin is removed, but the kubelet then reports no allocatable
    device (`allocatable`, by resource name). Plugins of other vendors have a problem instead."""
    found = sorted(
        (name, match[1])
        for name, value in annotations.items()
        if (match := _REGISTERED.fullmatch(name)) and value.strip(" []:")
    )
    if not found:
        return Registration()
    names = dict(found)
    key = next((key for key in (HAMI_NVIDIA, VOLCANO_NVIDIA) if key in names), found[0][0])
    plugin: Plugin = "hami" if names[key] == "hami.io" else "volcano"
    text, known = annotations[key], config.volcano_vgpu
    try:
        if len(text) > _CHARACTERS_MAX:
            raise _Unread(f"{key} is longer than {_CHARACTERS_MAX} characters")
        if key == HAMI_NVIDIA:
            needed = [config.hami.count]
            entries = _hami(text) if text.lstrip().startswith("[") else _hami_legacy(text)
        elif key == VOLCANO_NVIDIA:
            needed = [known.count, known.cores, known.memory]
            entries = _volcano(text, config.memory_factor)
        else:
            raise _Unread(f"{key}: devices of this vendor are not supported yet")
        missing = next((name for name in needed if not allocatable.get(name)), None)
        if missing is not None:
            raise _Unread(f"the kubelet reports no {missing}, so the plugin does not run")
        return Registration(plugin, tuple(_devices(list(entries))))
    except _Unread as error:
        return Registration(plugin, problem=str(error)[:TEXT_MAX])


def _hami(text: str) -> Iterator[_Entry]:
    try:
        yield from _decode(text)
    except msgspec.MsgspecError as error:
        raise _Unread(f"{HAMI_NVIDIA} cannot be read: {error}") from None


# Fields of one device in HAMi's encoding before 2.8, and since 2.5 with index and mode.
_SHORT, _LONG = 7, 9


def _hami_legacy(text: str) -> Iterator[_Entry]:
    for position, item in enumerate(filter(None, text.split(":"))):
        parts = item.split(",")
        if len(parts) not in (_SHORT, _LONG):
            raise _Unread(f"{HAMI_NVIDIA} has {len(parts)} fields instead of {_SHORT} or {_LONG}")
        name, count, memory, cores, kind, numa, health = parts[:_SHORT]
        index, mode = parts[_SHORT:] or (str(position), "")
        yield _Entry(
            name, _number(index), _number(count), _number(memory), _number(cores), kind,
            _number(numa), mode, health == "true",
        )  # fmt: skip


_VOLCANO_FIELDS = 6


def _volcano(text: str, factor: int) -> Iterator[_Entry]:
    for position, item in enumerate(filter(None, text.split(":"))):
        parts = item.split(",")
        if len(parts) < _VOLCANO_FIELDS:
            raise _Unread(f"{VOLCANO_NVIDIA} has {len(parts)} fields, not {_VOLCANO_FIELDS}")
        name, count, memory, kind, health, mode = parts[:_VOLCANO_FIELDS]
        yield _Entry(
            name, position, _number(count), _number(memory) * factor, 100, kind, -1, mode,
            health == "true",
        )  # fmt: skip


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _Unread(f"{text[:40]!r} is not a whole number")
    return int(text)


def _devices(entries: Sequence[_Entry]) -> Iterator[Device]:
    """Yield the devices. Raises _Unread for too many, two with one id, or an unknown mode."""
    if len(entries) > COUNT_MAX:
        raise _Unread(f"{len(entries)} devices are registered, but at most {COUNT_MAX} can be")
    if len({each.id for each in entries}) != len(entries):
        raise _Unread("a device id is registered twice")
    indexes = [each.index for each in entries]
    # HAMi's oldest encoding has no index; the devices are then in the order of their indexes.
    if len(set(indexes)) != len(indexes) or not all(0 <= at < COUNT_MAX for at in indexes):
        indexes = list(range(len(entries)))
    for index, each in zip(indexes, entries, strict=True):
        mode = _MODES.get(each.mode)
        if mode is None:
            raise _Unread(f"device {each.id[:40]!r} has the unknown mode {each.mode[:40]!r}")
        healthy = each.health and mode != "mig"
        device = Device(
            id=each.id,
            index=index,
            family=NVIDIA,
            model=each.type.removeprefix(_PREFIX)[:NAME_MAX] or NVIDIA,
            memory_mib=each.devmem,
            physical_memory_mib=each.devmem,
            cores=each.devcore,
            slots=min(max(each.count, 1), _SLOTS_MAX),
            mode=mode,
            numa=each.numa if 0 <= each.numa <= _NUMA_MAX else None,
            healthy=healthy,
            health_reason="" if healthy else MIG_PROBLEM if each.health else UNHEALTHY,
        )
        try:
            yield msgspec.convert(msgspec.to_builtins(device), Device)
        except msgspec.ValidationError as error:
            raise _Unread(f"device {each.id[:40]!r} cannot be used: {error}") from None
