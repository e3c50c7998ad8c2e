"""Kubernetes quantities ("100m", "2Gi", "1k", "1e3"), read exactly.

The grammar is that of `k8s.io/apimachinery/pkg/api/resource`: a decimal number with a binary
suffix, a decimal suffix or a decimal exponent. Invariant: no rounding happens here; whoever needs a
coarser unit rounds up once, at the end of a sum.
"""

import math
import re
from fractions import Fraction

from apportion.core.workloads.dialects.errors import ManifestError

CHARS_MAX = 64
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))"
    r"(?:[eE](?P<exponent>[+-]?\d{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)",
    re.ASCII,
)
_WITH_UNIT = re.compile(r"(?P<number>\d{1,15})\s*(?P<unit>[Mm][Ii]?[Bb]|%)", re.ASCII)
"""Of names that count MiB or percent; whoever counts in others is told that it is too much."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(value: object, field: str) -> Fraction:
    """The amount that a quantity means: zero or more, exactly.

    Raises:
        ManifestError: it is not a quantity, or it is negative.
    """
    match _exact(value):
        case None:
            raise ManifestError(
                field, value, "is not a quantity", 'write a number, as in "2", "500m" or "4Gi"'
            )
        case amount if amount < 0:
            raise ManifestError(field, value, "is negative", "write 0 or more")
        case amount:
            return amount


def whole(value: object, field: str, *, limit: int, least: str = "write 0 or more") -> int:
    """The amount of an extended resource: a whole number from 0 to `limit`.

    `least` is the fix of a negative one, for those of whom 0 would be no use either.

    Raises:
        ManifestError: it is no quantity, negative, a fraction, or above the limit.
    """
    amount = _exact(value)
    if amount is None:
        raise ManifestError(field, value, "is not a quantity", _as_number(value))
    if amount < 0:
        raise ManifestError(field, value, "is negative", least)
    if amount.denominator != 1:
        raise ManifestError(field, value, "is a fraction", "write a whole number")
    if amount > limit:
        raise ManifestError(field, value, "is absurdly large", f"write at most {limit}")
    return int(amount)


def _as_number(value: object) -> str:
    """The fix of what is no quantity; of a number with its unit, as in `4000MB`, the number."""
    parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return 'write a whole number, as in "2"'
    return f'write a whole number without "{parts["unit"]}", as in "{parts["number"]}"'


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
