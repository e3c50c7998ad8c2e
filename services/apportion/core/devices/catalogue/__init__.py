"""The properties of each device family, in one TOML file per vendor.

A new vendor is a new file; only a new way of dividing devices needs code. Invariant: the catalogue
is read once, at import, and never changes."""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from apportion_schemas.inventory import MigSize, Mode

NVIDIA = "nvidia"
PERCENT = "%"
_MIG_NAME = re.compile(r"(?P<compute>\d+g)\.(?P<gigabytes>\d+)gb")


class MigProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """A MIG profile, with its possible start slices."""

    name: str
    memory_mib: int
    cores: int  # percent
    size: int  # memory slices
    starts: tuple[int, ...]
    by_name: bool = False  # another profile has as much memory

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return each possible position of an instance as (start, slice mask), preferred first."""
        return tuple((start, ((1 << self.size) - 1) << start) for start in self.starts)


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A device model, recognized by the words in `match`, with its MIG profiles, smallest first.

    If `rows`, any devices with consecutive indexes may be allocated together. The family's `sets`
    do not apply then."""

    match: tuple[str, ...]
    profiles: tuple[MigProfile, ...] = ()
    rows: bool = False


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """A vNPU template, a fixed part of an NPU: memory in MiB, AI cores and AI CPUs."""

    name: str
    memory_mib: int
    cores: int
    cpu: int = 0


class Family(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The devices that one resource name requests, such as NVIDIA's GPUs.

    The devices can be shared in the family's `modes`, the default first. If the family has
    `templates`, each share has the size of one of them. A model with profiles can also be divided
    into MIG instances. `sets` maps a number of devices to the sets of indexes that may be allocated
    together, the best first. If the family has any `sets`, a pod that requests several devices must
    request a number in `sets`. If `alike`, all shares of a device have the same template, and a pod
    may have several."""

    name: str
    title: str
    cores: Annotated[int, Meta(ge=1)] = 100
    unit: str = PERCENT  # of a share's cores: percent, or a noun
    counted_cores: bool = False  # shares have a number of cores, and requests percent of a device
    template_cpu: int = 0
    templates: tuple[Template, ...] = ()
    alike: bool = False
    models: tuple[Model, ...] = ()
    types: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ("hami-core", "mps", "exclusive")
    brand: str = ""  # put before a model's name by device plugins
    printed_mib: int = 0  # nominal memory
    module: Annotated[int, Meta(ge=1)] = 1  # devices allocated together
    sets: dict[int, tuple[tuple[int, ...], ...]] = {}


class _Vendor(Struct, forbid_unknown_fields=True):
    family: tuple[Family, ...]


_FILES = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")]
FAMILIES: dict[str, Family] = {
    family.name: family
    for file in sorted(_FILES, key=lambda file: file.name)
    for family in msgspec.convert(
        tomllib.loads(file.read_text("utf-8")), _Vendor, str_keys=True
    ).family
}
_TYPES = frozenset(name.lower() for family in FAMILIES.values() for name in family.types)
_TOKEN = re.compile(r"[a-z0-9.]+(?:-\d\b)?")  # "ascend910b4-1" is one name, "a100-sxm4" two


def template_of(family: str, name: str) -> Template | None:
    """Return the family's vNPU template of that name, or None."""
    known = FAMILIES.get(family)
    return next((t for t in known.templates if t.name == name), None) if known else None


def alike_number(family: str, template: str) -> int:
    """Return the template's number, from 1, if the family is `alike`; else 0.

    In such a family, all shares of a device have the same template."""
    known = FAMILIES.get(family)
    names = [each.name for each in known.templates] if known and known.alike else []
    return names.index(template) + 1 if template in names else 0


def by_template(family: str) -> bool:
    """Return True if shares of one device may have different templates, as of an NPU."""
    known = FAMILIES.get(family)
    return known is not None and bool(known.templates) and not known.alike


def counts_cores(family: str) -> bool:
    """Return True if shares of this family have a number of the device's cores, not percent."""
    known = FAMILIES.get(family)
    return known is not None and known.counted_cores


def normal(model: str) -> str:
    """Normalize a model's name to lower case, with words joined by hyphens."""
    return "-".join(model.lower().split())


def model_of(family: str, model: str) -> Model | None:
    """Return the model's entry in the catalogue, or None."""
    known = FAMILIES.get(family)
    words = f"-{normal(model)}-"
    for candidate in known.models if known else ():
        if any(f"-{normal(name)}-" in words for name in candidate.match):
            return candidate
    return None


@lru_cache(maxsize=1024)
def mig_profiles(
    family: str, model: str, sizes: tuple[MigSize, ...] = ()
) -> tuple[MigProfile, ...]:
    """Return the model's MIG profiles, smallest first; `sizes` may replace their memory."""
    known = model_of(family, model)
    return tuple(sized(profile, sizes) for profile in known.profiles) if known else ()


def mig_profile(model: str, name: str, sizes: tuple[MigSize, ...] = ()) -> MigProfile | None:
    """Return the profile called `name` of an NVIDIA model, or None. `sizes` may change its memory.

    Drivers round gigabytes differently: 7g.79gb is the same profile as 7g.80gb. A suffix, such as
    `+me`, makes another profile."""
    profiles = mig_profiles(NVIDIA, model)
    exact = [profile for profile in profiles if profile.name == name]
    alike = exact or [profile for profile in profiles if _renamed(name, profile.name)]
    return sized(structs.replace(alike[0], name=name), sizes) if len(alike) == 1 else None


def _renamed(name: str, known: str) -> bool:
    found, other = _MIG_NAME.fullmatch(name), _MIG_NAME.fullmatch(known)
    if not found or not other or found["compute"] != other["compute"]:
        return False
    wanted_gb, known_gb = int(found["gigabytes"]), int(other["gigabytes"])
    return abs(wanted_gb - known_gb) * 5 <= known_gb


def sized(profile: MigProfile, sizes: tuple[MigSize, ...]) -> MigProfile:
    """Return the profile with the memory that the device reports for it, if it reports any."""
    memory_mib = (each.memory_mib for each in sizes if each.profile == profile.name)
    return structs.replace(profile, memory_mib=next(memory_mib, profile.memory_mib))


def registered(family: str, model: str) -> str:
    """Return the model's name as device plugins register it: with the brand first.

    Volcano and HAMi up to 2.7 repeat the brand even if the name has it (`register.go`)."""
    brand = FAMILIES[family].brand if family in FAMILIES else ""
    return f"{brand}-{model}" if brand else model


@lru_cache(maxsize=1024)
def product(family: str, model: str) -> str:
    """Return the same name for every name of one model, with or without its brand."""
    brand = f"{normal(FAMILIES[family].brand)}-" if family in FAMILIES else "-"
    name = normal(model)
    while len(brand) > 1 and name.startswith(brand):
        name = name.removeprefix(brand)
    return name


@lru_cache(maxsize=4096)
def type_matches(pattern: str, model: str) -> bool:
    """Return True if a device type, as in `nvidia.com/use-gputype`, selects this model.

    Case is ignored. A whole name does not match a longer one: `A10` matches no A100. Other text,
    such as `SXM4`, may be any part of a model's name."""
    wanted, whole = normal(pattern), normal(model)
    tokens = _TOKEN.findall(whole)
    if wanted == whole or wanted in tokens or "ascend" + wanted in tokens:
        return True
    return wanted not in _TYPES and wanted in whole
