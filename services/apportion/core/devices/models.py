"""The models that a simulated node can have: package data, read once and checked whole.

How a card may be cut is the device catalogue's knowledge and is not repeated here. Invariant: every
row makes a `Device` that the ledger's schema takes, in every mode that `modes` names.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import msgspec

from apportion.core.devices.catalogue import FAMILIES, mig_profiles
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import WHOLE, Count, MemoryMib, Name

SLOTS = 10
"""HAMi's default `deviceSplitCount`."""


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
