"""Read what one container requests of each resource, whatever the dialect.

A quantity ("100m", "2Gi", "1k", "1e3") is read exactly, by the grammar of
`k8s.io/apimachinery/pkg/api/resource`; callers round up once, at the end of a sum. Extended
resources cannot be overcommitted, so request and limit must agree. Invariant: an `Amount` is a
whole number of zero or more."""

import math
import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from apportion.core.devices.sets import counts_of
from apportion.core.workloads.document import ManifestError, within
from apportion_schemas import Ask
from apportion_schemas.quantities import COUNT_MAX, MEMORY_MIB_MAX, WHOLE

CHARS_MAX = 64
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))"
    r"(?:[eE](?P<exponent>[+-]?\d{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)",
    re.ASCII,
)
# only units of names that count MiB or percent
_WITH_UNIT = re.compile(r"(?P<number>\d{1,15})\s*(?P<unit>[Mm][Ii]?[Bb]|%)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(value: object, field: str) -> Fraction:
    """Return the exact value of a quantity. Raises ManifestError if malformed or negative."""
    match _exact(value):
        case None:
            fix = 'write a number such as "2", "500m" or "4Gi"'
            raise ManifestError(field, value, "is not a quantity", fix)
        case amount if amount < 0:
            raise ManifestError(field, value, "is negative", "write 0 or more")
        case amount:
            return amount


def whole(value: object, field: str, *, limit: int, least: str = "write 0 or more") -> int:
    """Return the amount of an extended resource. Raises ManifestError if it is not 0 to `limit`.

    `least` is the fix to suggest for a negative amount."""
    amount = _exact(value)
    if amount is None:
        parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
        fix = 'write a whole number such as "2"'
        if parts is not None:
            fix = f'write a whole number without "{parts["unit"]}", such as "{parts["number"]}"'
        raise ManifestError(field, value, "is not a quantity", fix)
    if amount < 0:
        raise ManifestError(field, value, "is negative", least)
    if amount.denominator != 1:
        raise ManifestError(field, value, "is a fraction", "write a whole number")
    if amount > limit:
        raise ManifestError(field, value, "is too large", f"write at most {limit}")
    return int(amount)


def _exact(value: object) -> Fraction | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        return Fraction(repr(value)) if math.isfinite(value) else None
    if not isinstance(value, str) or len(value) > CHARS_MAX:
        return None
    parts = _QUANTITY.fullmatch(value)
    if parts is None:
        return None
    suffix = parts["suffix"] or ""
    if suffix in _BINARY:
        return Fraction(parts["number"]) * (1 << _BINARY[suffix])
    return Fraction(f"{parts['number']}e{parts['exponent'] or _DECIMAL[suffix]}")


AMOUNT_MAX = 1 << 53  # what a JSON number holds exactly

_LEAST = "write 1 or more, or remove it"

# An init container ends before the others start; a sidecar is one with `restartPolicy: Always`.
Role = Literal["init", "sidecar", "app"]


class Container(NamedTuple):
    """A container's name and `resources`; `field` is its path, as in `spec.containers[0]`."""

    name: str
    field: str
    limits: Mapping[str, object]
    requests: Mapping[str, object]
    role: Role = "app"

    def at(self, kind: Literal["limits", "requests"], resource: str) -> str:
        """Return the field path of one of the container's amounts."""
        return within(f"{self.field}.resources.{kind}", resource)

    def ask(self, family: str, **wanted: Any) -> Ask:
        """Return an ask of this container for devices of a family; `wanted` fills other fields."""
        return Ask(container=self.name, family=family, init=self.role == "init", **wanted)


class Amount(NamedTuple):
    """How much a container requests of one resource, and the field with that request.

    The methods convert it to the fields of an `Ask`. An amount outside the bounds of the event
    schema is refused, unless the dialect clamps it."""

    value: int
    field: str
    written: object

    def refusal(self, problem: str, fix: str) -> ManifestError:
        """Return the error that refuses this amount."""
        return ManifestError(self.field, self.written, problem, fix)

    def devices(self, family: str = "") -> int:
        """Return the amount as a number of different devices, at least one.

        It is refused if no node allocates so many devices of this family together."""
        if not 1 <= self.value <= COUNT_MAX:
            fix = "request no more devices than one node has"
            raise self.refusal(f"is not between 1 and {COUNT_MAX} devices", fix)
        counts = counts_of(family)
        if self.value not in counts:
            near = [n for n in counts if n < self.value][-1:] + [
                n for n in counts if n > self.value
            ]
            fix = f"write {' or '.join(map(str, near[:2]))}"
            raise self.refusal("is not a number of devices that one container can have", fix)
        return self.value

    def memory_mib(self, unit_mib: int) -> int | None:
        """Return the amount as memory per device in MiB; None for zero."""
        if self.value * unit_mib > MEMORY_MIB_MAX:
            meant = (self.value >> 20) // unit_mib  # the author wrote bytes, as in 4Gi
            raise self.refusal(
                f"is more memory than any device has (the unit is {unit_mib} MiB)",
                f"write {meant}" if isinstance(self.written, str) and meant
                else f"write at most {MEMORY_MIB_MAX // unit_mib}",
            )  # fmt: skip
        return self.value * unit_mib or None

    def memory_percent(self) -> int:
        """Return the amount as percent of each device's memory."""
        if not 1 <= self.value <= WHOLE:
            fix = "write 1 to 100, or remove it to request all memory"
            raise self.refusal("is not a percentage from 1 to 100", fix)
        return self.value

    def cores_percent(self, *, clamp: bool) -> int:
        """Return the amount as percent of each device's compute.

        If `clamp`, more than 100 is 100, as in HAMi (`Fit`: "core limit can't exceed 100")."""
        if self.value > WHOLE and not clamp:
            fix = "write 0 to 100, and use the count to request more devices"
            raise self.refusal("is more than 100 percent of a device", fix)
        return min(self.value, WHOLE)


Amounts = Mapping[str, Amount]


def amount_of(container: Container, resource: str) -> Amount:
    """Return how much of an extended resource the container requests.

    Raises ManifestError if it is not a whole number, or request and limit differ."""
    kind: Literal["limits", "requests"] = "limits" if resource in container.limits else "requests"
    written = getattr(container, kind)[resource]
    field = container.at(kind, resource)
    amount = Amount(whole(written, field, limit=AMOUNT_MAX, least=_LEAST), field, written)
    if kind == "limits" and resource in container.requests:
        field = container.at("requests", resource)
        requested = container.requests[resource]
        if whole(requested, field, limit=AMOUNT_MAX, least=_LEAST) != amount.value:
            fix = "remove the request, or make it equal to the limit"
            raise ManifestError(field, requested, f"differs from the limit ({amount.value})", fix)
    return amount


def amounts_of(container: Container, resources: Collection[str]) -> dict[str, Amount]:
    """Return how much the container requests of each resource. Raises ManifestError."""
    named = {**container.limits, **container.requests}
    return {name: amount_of(container, name) for name in named if name in resources}
