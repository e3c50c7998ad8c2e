"""Create simulated devices from a short text, for laptops, tests and imagined fleets.

A text such as `8xH100-80GB` or `4xA100-40GB:mig+2xT4:mps` has count, model and, optionally, sharing
mode. Invariants: the same node name and text give the same devices everywhere; every model of
`models.toml` makes a valid `Device` in each of its `modes`."""

import hashlib
import re
import tomllib
from functools import cache
from importlib import resources

import msgspec

from apportion.core.devices.catalogue import FAMILIES, mig_profiles
from apportion.core.names import near
from apportion_schemas import Device
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import COUNT_MAX, WHOLE, Count, MemoryMib, Name

SLOTS = 10  # HAMi's default `deviceSplitCount`
_PART = re.compile(
    r"(?P<count>\d{1,18})\s*x\s*(?P<model>[A-Za-z0-9._-]{1,64})(:(?P<mode>[a-z-]{1,16}))?"
)
_SPEC_CHARS_MAX = 1024
_EXAMPLE = "COUNTxMODEL[:MODE], joined by +, such as 4xA100-40GB:mig+2xT4"


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device model from `models.toml`; that file documents each field."""

    model: Name
    family: Name
    memory_mib: MemoryMib
    nvlink: Count | None = None

    def cores(self, mode: Mode) -> int:
        """Return the device's cores: AI cores for an NPU, percent for a GPU or softly split NPU."""
        family = FAMILIES[self.family]
        return WHOLE if family.templates and mode == "hami-core" else family.cores

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the ways in which the device can be shared; the first is the default."""
        family = FAMILIES[self.family]
        if family.templates:
            return ("vnpu", "hami-core", "exclusive")
        mig: tuple[Mode, ...] = ("mig",) if mig_profiles(self.family, self.model) else ()
        return (family.modes[0], *mig, *family.modes[1:])

    def slots(self, mode: Mode) -> int:
        """Return how many containers can share the device if it is in this mode."""
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
    """Return all models by their short names, such as `H100-80GB`."""
    text = resources.files(__package__).joinpath("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Model])


class SimulationInvalid(ValueError):
    """Raised if a description of simulated devices is invalid; names the field, value and fix."""


def simulated_devices(node: str, spec: str) -> tuple[Device, ...]:
    """Return the devices that `spec` describes, in its order, with ids for this node.

    Raises SimulationInvalid if the text cannot be parsed, or names an unknown model or mode."""
    if len(spec) > _SPEC_CHARS_MAX:
        raise SimulationInvalid(
            f"devices: the text has {len(spec)} characters; write at most {_SPEC_CHARS_MAX}, "
            f"in the form {_EXAMPLE}"
        )
    cards: list[tuple[Model, Mode]] = []
    for part in map(str.strip, spec.split("+")):
        found = _PART.fullmatch(part)
        if found is None:
            raise SimulationInvalid(f"devices: {part!r} is not valid; write {_EXAMPLE}")
        if (count := int(found["count"])) < 1:
            raise SimulationInvalid(f"devices: {part!r} has no device; write a count of 1 or more")
        model = find_model(found["model"])
        mode = next((each for each in model.modes if each == found["mode"]), model.modes[0])
        if found["mode"] not in (None, mode):
            raise SimulationInvalid(
                f"devices: {part!r}: {found['model']} has no mode {found['mode']!r}; "
                f"use {', '.join(model.modes)}"
            )
        if len(cards) + count > COUNT_MAX:
            raise SimulationInvalid(
                f"devices: {spec!r} has more than {COUNT_MAX} devices; spread them over more nodes"
            )
        cards += [(model, mode)] * count
    devices = [_device(node, index, *card) for index, card in enumerate(cards)]
    # Two sockets from four devices on; NVLink between all devices of one model that has it.
    half = len(devices) // 2 if len(devices) >= 4 else len(devices)  # noqa: PLR2004 - cards
    linked = []
    for device, (model, _) in zip(devices, cards, strict=True):
        peers = [c.id for c in devices if c.model == device.model and c.id != device.id]
        lanes = dict.fromkeys(peers, model.nvlink) if model.nvlink else {}
        numa = 0 if device.index < half else 1
        linked.append(msgspec.structs.replace(device, numa=numa, nvlink_lanes=lanes))
    return tuple(linked)


def find_model(name: str) -> Model:
    """Return the model with this short name, ignoring case. Raises SimulationInvalid if unknown."""
    known = {key.lower(): (key, model) for key, model in models().items()}
    if name.lower() in known:
        return known[name.lower()][1]
    longer = [key for key in known if key.startswith(name.lower())]
    close = longer or near(name.lower(), known, alike=0.4, seen_as=str) or known
    raise SimulationInvalid(
        f"devices: unknown model {name!r}; use {', '.join(known[key][0] for key in close)}"
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
