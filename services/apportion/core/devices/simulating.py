"""Devices that exist only here, as text: for a laptop, for tests, and for fleets to think about.

A simulated card is described by a short text, `8xH100-80GB` or `4xA100-40GB:mig+2xT4:mps`: count,
model, and the mode if it is not the model's default. The models are package data, read once and
checked whole; how a card may be cut is the device catalogue's knowledge and is not repeated there.
Invariants: the same node name and text make the same devices with the same ids on every machine and
in every run; every model makes a `Device` that the ledger's schema takes, in each of its `modes`.
"""

import hashlib
import re
import tomllib
from functools import cache
from importlib import resources

import msgspec

from apportion.core.devices.catalogue import FAMILIES, mig_profiles
from apportion.core.similarity import near
from apportion_schemas import Device
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import COUNT_MAX, WHOLE, Count, MemoryMib, Name

SLOTS = 10
"""HAMi's default `deviceSplitCount`."""
_PART = re.compile(
    r"(?P<count>\d{1,18})\s*x\s*(?P<model>[A-Za-z0-9._-]{1,64})(:(?P<mode>[a-z-]{1,16}))?"
)
_SPEC_CHARS_MAX = 1024
_EXAMPLE = "COUNTxMODEL[:MODE], several joined by +, as in 4xA100-40GB:mig+2xT4"


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of `models.toml`, which says what each field means."""

    model: Name
    family: Name
    memory_mib: MemoryMib
    nvlink: Count | None = None

    def cores(self, mode: Mode) -> int:
        """Percent of a GPU, or of an NPU that is split softly; AI cores of any other NPU."""
        family = FAMILIES[self.family]
        return WHOLE if family.templates and mode == "hami-core" else family.cores

    @property
    def modes(self) -> tuple[Mode, ...]:
        """How the card may be shared; the first is the default."""
        family = FAMILIES[self.family]
        if family.templates:
            return ("vnpu", "hami-core", "exclusive")
        mig: tuple[Mode, ...] = ("mig",) if mig_profiles(self.family, self.model) else ()
        return (family.modes[0], *mig, *family.modes[1:])

    def slots(self, mode: Mode) -> int:
        """How many containers may share the card in this mode."""
        if mode == "exclusive":
            return 1
        if mode == "mig":
            return max(len(p.starts) for p in mig_profiles(self.family, self.model))
        if mode == "vnpu":
            family = FAMILIES[self.family]
            smallest = family.templates[0]
            by_memory = self.memory_mib // smallest.memory_mib
            by_cores = family.cores // smallest.cores
            by_cpu = family.template_cpu // smallest.cpu if smallest.cpu else by_cores
            return max(1, min(by_memory, by_cores, by_cpu))
        return SLOTS


@cache
def models() -> dict[str, Model]:
    """Every model by the short name that a person writes, as in `H100-80GB`."""
    text = resources.files(__package__).joinpath("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Model])


class SimulationInvalid(ValueError):
    """The description of a simulated node makes no sense: field, value and fix are named."""


def simulated_devices(node: str, spec: str) -> tuple[Device, ...]:
    """The devices of one node, in the order of the text.

    Raises SimulationInvalid: the text is not of the form, or names a model or mode that is not
    known."""
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
    devices = [_device(node, index, *card) for index, card in enumerate(cards)]
    # Two sockets from four cards on; NVLink between all cards of one model that has it.
    half = len(devices) // 2 if len(devices) >= 4 else len(devices)  # noqa: PLR2004 - cards
    linked = []
    for device, (model, _) in zip(devices, cards, strict=True):
        peers = [c.id for c in devices if c.model == device.model and c.id != device.id]
        lanes = dict.fromkeys(peers, model.nvlink) if model.nvlink else {}
        numa = 0 if device.index < half else 1
        linked.append(msgspec.structs.replace(device, numa=numa, nvlink_lanes=lanes))
    return tuple(linked)


def _read_part(part: str) -> tuple[int, Model, Mode]:
    found = _PART.fullmatch(part)
    if found is None:
        raise SimulationInvalid(f"devices: {part!r} cannot be read; write {_EXAMPLE}")
    if int(found["count"]) < 1:
        raise SimulationInvalid(f"devices: {part!r} is no device; write a count of 1 or more")
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

    Raises SimulationInvalid: names the models that come closest."""
    known = {key.lower(): (key, model) for key, model in models().items()}
    if name.lower() in known:
        return known[name.lower()][1]
    longer = [key for key in known if key.startswith(name.lower())]
    close = longer or near(name.lower(), known, alike=0.4, seen_as=str) or known
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
