"""The device catalogue: what is known of each family, as data.

One TOML file per vendor beside this module says how its devices may be cut: the MIG profiles of a
model with the memory slices that they may start at, the vNPU templates of a chip, the type names
that users write. A new vendor is a new file; only a new way of cutting needs code.

Invariant: the catalogue is read once, at import, and never changes."""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from apportion_schemas.inventory import MigSize, Mode


class MigProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """A MIG profile: an instance's memory and cores (percent), and its slices `[start, +size)`.

    One `by_name` comes behind another of as much memory, so only its name chooses it."""

    name: str
    memory_mib: int
    cores: int
    size: int
    starts: tuple[int, ...]
    by_name: bool = False

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Start and mask of memory slices of each placement, in the order of preference."""
        return tuple((start, ((1 << self.size) - 1) << start) for start in self.starts)


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of a family, recognised by whole words (`match`); its profiles small to large."""

    match: tuple[str, ...]
    profiles: tuple[MigProfile, ...] = ()


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """A vNPU template: memory in MiB, AI cores and AI CPUs."""

    name: str
    memory_mib: int
    cores: int
    cpu: int = 0


class Family(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that one resource name asks for.

    `modes` are the ways in which they are shared, the usual one first; where there are templates,
    that is by them, and models with profiles may be cut by these as well. `brand` is the word that
    the device plugins put before a model that does not begin with it. `printed_mib` is what is
    printed on a device, which may offer less than that. `module` is how many devices, by their
    index, share a module and are handed out together."""

    name: str
    title: str
    cores: Annotated[int, Meta(ge=1)] = 100
    template_cpu: int = 0
    templates: tuple[Template, ...] = ()
    models: tuple[Model, ...] = ()
    types: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ("hami-core", "mps", "exclusive")
    brand: str = ""
    printed_mib: int = 0
    module: Annotated[int, Meta(ge=1)] = 1


class _Vendor(Struct, forbid_unknown_fields=True):
    family: tuple[Family, ...]


_FILES = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")]
FAMILIES: dict[str, Family] = {
    family.name: family
    for file in sorted(_FILES, key=lambda file: file.name)
    for family in msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Vendor).family
}
_TYPES = frozenset(name.lower() for family in FAMILIES.values() for name in family.types)
_TOKEN = re.compile(r"[a-z0-9.]+(?:-\d\b)?")  # "ascend910b4-1" is one name, "a100-sxm4" two


def template_of(family: str, name: str) -> Template | None:
    """The vNPU template of that name, or None."""
    known = FAMILIES.get(family)
    return next((t for t in known.templates if t.name == name), None) if known else None


def module_of(family: str) -> int:
    """How many devices of this family are handed out together; 1 where each is alone."""
    known = FAMILIES.get(family)
    return known.module if known else 1


def normal(model: str) -> str:
    """A model's name as it is compared: lower case, words joined by hyphens."""
    return "-".join(model.lower().split())


@lru_cache(maxsize=1024)
def mig_profiles(
    family: str, model: str, sizes: tuple[MigSize, ...] = ()
) -> tuple[MigProfile, ...]:
    """The MIG profiles of a device, smallest first; empty where the model has none.

    `sizes` replace the memory that the catalogue has."""
    known = FAMILIES.get(family)
    words = f"-{normal(model)}-"
    for candidate in known.models if known else ():
        if any(f"-{normal(name)}-" in words for name in candidate.match):
            return tuple(sized(profile, sizes) for profile in candidate.profiles)
    return ()


def sized(profile: MigProfile, sizes: tuple[MigSize, ...]) -> MigProfile:
    """The profile with the memory that `sizes` have for its name, if they have it."""
    memory_mib = (each.memory_mib for each in sizes if each.profile == profile.name)
    return structs.replace(profile, memory_mib=next(memory_mib, profile.memory_mib))


def registered(family: str, model: str) -> str:
    """A model as the device plugins of HAMi up to 2.7 and Volcano register it: with the brand in
    front, also of an `NVIDIA A100` (`register.go`). HAMi since leaves it out where it is there."""
    brand = FAMILIES[family].brand if family in FAMILIES else ""
    return f"{brand}-{model}" if brand else model


@lru_cache(maxsize=4096)
def type_matches(pattern: str, model: str) -> bool:
    """Whether a type that a user wrote means this model (`nvidia.com/use-gputype`).

    Case does not count. A whole name comes before a substring: `A10` does not mean an A100, nor
    `910B4` a 910B4-1, because each is a type of its own; `SXM4` is none and is looked for inside.
    """
    wanted, whole = normal(pattern), normal(model)
    tokens = _TOKEN.findall(whole)
    if wanted == whole or wanted in tokens or "ascend" + wanted in tokens:
        return True
    return wanted not in _TYPES and wanted in whole
