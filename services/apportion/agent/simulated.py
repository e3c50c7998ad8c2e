"""Devices that exist only here: for a laptop, for tests, and for fleets that nobody could buy.

A simulated card is described by a short text, `8xH100-80GB` or `4xA100-40GB:mig+2xT4:mps`: count,
model, and the mode if it is not the model's default. Invariant: the same node name and text make
the same devices with the same ids on every machine and in every run.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import re
import uuid
from collections.abc import Collection, Iterable

import msgspec

from apportion.agent.backend import InTheWay, Load, NotMade
from apportion.agent.models import Model, models
from apportion.core.grants import MadeInstance
from apportion.core.grants.mig import named, overlap
from apportion_schemas import Device, MigInstance
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import COUNT_MAX

_PART = re.compile(
    r"(?P<count>\d{1,4})\s*x\s*(?P<model>[A-Za-z0-9._-]{1,64})(:(?P<mode>[a-z-]{1,16}))?"
)
_SPEC_CHARS_MAX = 1024
_EXAMPLE = "COUNTxMODEL[:MODE], several joined by +, as in 4xA100-40GB:mig+2xT4"


class SimulationInvalid(ValueError):
    """The description of a simulated node makes no sense: field, value and fix are named."""


class DeviceUnknown(ValueError):
    """A command names a device that this node does not have."""


def simulated_devices(node: str, spec: str) -> tuple[Device, ...]:
    """The devices of one node, in the order of the text.

    Raises:
        SimulationInvalid: the text is not of the form, or names a model or mode that is not known.
    """
    if len(spec) > _SPEC_CHARS_MAX:
        raise SimulationInvalid(
            f"devices: {len(spec)} characters; at most {_SPEC_CHARS_MAX} of {_EXAMPLE}"
        )
    cards: list[tuple[Model, Mode]] = []
    for part in spec.split("+"):
        count, model, mode = _read_part(part.strip())
        if len(cards) + count > COUNT_MAX:
            raise SimulationInvalid(
                f"devices: {spec!r} has more than {COUNT_MAX} devices; spread them over more nodes"
            )
        cards += [(model, mode)] * count
    return tuple(_linked(_device(node, index, *card) for index, card in enumerate(cards)))


def _read_part(part: str) -> tuple[int, Model, Mode]:
    found = _PART.fullmatch(part)
    if found is None or int(found["count"]) < 1:
        raise SimulationInvalid(f"devices: {part!r} cannot be read; write {_EXAMPLE}")
    model = find_model(found["model"])
    modes = model.modes
    mode = found["mode"] or modes[0]
    if mode not in modes:
        raise SimulationInvalid(
            f"devices: {part!r}: mode {mode!r} is not one that {found['model']} has; "
            f"use {', '.join(modes)}"
        )
    return int(found["count"]), model, modes[modes.index(mode)]


def find_model(name: str) -> Model:
    """The model of that short name; case does not count.

    Raises:
        SimulationInvalid: names the models that come closest.
    """
    known = {key.lower(): (key, model) for key, model in models().items()}
    if name.lower() in known:
        return known[name.lower()][1]
    longer = [key for key in known if key.startswith(name.lower())]
    close = longer or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or known
    raise SimulationInvalid(
        f"devices: model {name!r} is not known; use {', '.join(known[key][0] for key in close)}"
    )


def _device(node: str, index: int, model: Model, mode: Mode) -> Device:
    digest = hashlib.sha256(f"{node}/{index}/{model.model}".encode()).hexdigest()
    shape = (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
    prefix = "GPU" if model.family == "nvidia" else "NPU"
    return Device(
        id=f"{prefix}-{'-'.join(shape)}",
        index=index,
        family=model.family,
        model=model.model,
        memory_mib=model.memory_mib,
        physical_memory_mib=model.memory_mib,
        cores=model.cores(mode),
        slots=model.slots(mode),
        mode=mode,
    )


def _linked(devices: Iterable[Device]) -> list[Device]:
    """Give each card its NUMA node (two sockets from four cards on) and its NVLink peers."""
    cards = list(devices)
    half = len(cards) // 2 if len(cards) >= 4 else len(cards)  # noqa: PLR2004 - cards, see above
    lanes = {model.model: model.nvlink for model in models().values()}
    linked = []
    for card in cards:
        width = lanes[card.model]
        peers = [c.id for c in cards if c.model == card.model and c.id != card.id] if width else ()
        linked.append(
            msgspec.structs.replace(
                card,
                numa=0 if card.index < half else 1,
                nvlink_lanes=dict.fromkeys(peers, width or 0),
            )
        )
    return linked


class SimulatedBackend:
    """A `DeviceBackend` whose devices fail and recover on command."""

    driver = "simulated"
    simulated = True

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = {device.id: device for device in devices}
        self._changed = asyncio.Event()
        self._instances: dict[str, list[MigInstance]] = {}

    async def inventory(self) -> tuple[Device, ...]:
        """See `DeviceBackend`."""
        return tuple(self._devices.values())

    async def changed(self) -> None:
        """See `DeviceBackend`."""
        await self._changed.wait()
        self._changed.clear()

    async def make_instance(
        self, device: str, wanted: MigInstance, needed: Collection[MigInstance]
    ) -> MadeInstance:
        """See `DeviceBackend`."""
        if device not in self._devices or self._devices[device].mode != "mig":
            raise NotMade(f"device {device} is not one in MIG mode of this node")
        there = self._instances.setdefault(device, [])
        for made in [each for each in there if each != wanted and overlap(each, wanted)]:
            if made in needed:
                raise InTheWay(f"{named(made)} stands in the way of {named(wanted)}")
            there.remove(made)
        if wanted not in there:
            there.append(wanted)
        digest = uuid.uuid5(uuid.NAMESPACE_OID, f"{device}/{wanted.profile}/{wanted.start}")
        return MadeInstance(f"MIG-{digest}")

    async def keep_instances(self, device: str, needed: Collection[MigInstance]) -> list[str]:
        """See `DeviceBackend`."""
        there = self._instances.get(device, [])
        gone = [each for each in there if each not in needed]
        self._instances[device] = [each for each in there if each in needed]
        return [named(each) for each in gone]

    async def set_exclusive(self, device: str, *, exclusive: bool) -> None:
        """See `DeviceBackend`; no process ever runs on a simulated card."""

    async def loads(self) -> tuple[Load, ...]:
        """See `DeviceBackend`; no process ever runs on a simulated card."""
        loads = [Load(device, 0, 0) for device in self._devices]
        loads += [
            Load(device, 0, 0, cut) for device, there in self._instances.items() for cut in there
        ]
        return tuple(loads)

    async def close(self) -> None:
        """See `DeviceBackend`; nothing is held."""

    def fail(self, device: str, reason: str) -> None:
        """Make a device unhealthy. Raises DeviceUnknown."""
        self._set(device, healthy=False, reason=reason)

    def recover(self, device: str) -> None:
        """Make a device healthy again. Raises DeviceUnknown."""
        self._set(device, healthy=True, reason="")

    def restore(self, known: Iterable[Device]) -> None:
        """Take over which devices the ledger says are unhealthy.

        A simulated failure lives in the ledger alone: it must outlive this process, as a broken
        card outlives the agent that reported it.
        """
        for device in known:
            if device.id in self._devices and not device.healthy:
                self._set(device.id, healthy=False, reason=device.health_reason)

    def _set(self, device: str, *, healthy: bool, reason: str) -> None:
        if device not in self._devices:
            known = ", ".join(self._devices) or "none"
            raise DeviceUnknown(f"device {device!r} is not on this node; it has {known}")
        self._devices[device] = msgspec.structs.replace(
            self._devices[device], healthy=healthy, health_reason=reason
        )
        self._changed.set()
