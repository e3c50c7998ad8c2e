"""Match the names by which users refer to a device: its id, or a prefix of the id.

Invariant: all commands and answers accept the same names; an ambiguous prefix selects no device."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from apportion.core.explain.text.words import listed

RULE: Final = "Any unique prefix of a device id works (at least 4 characters after GPU-)."
WRITE_MORE: Final = "write more of the id"
# The vendor's prefix, if any, such as `GPU-`, and at least four characters
_enough: Final = re.compile(r"([A-Z]+-)*+.{4,}").fullmatch
_too_little: Final = re.compile(r"((?:[A-Z]+-)++).{0,3}").fullmatch


def means(name: str, device: str) -> bool:
    """Return True if the name can refer to the device."""
    return name == device or (device.startswith(name) and _enough(name) is not None)


def meant(name: str, devices: Iterable[str]) -> list[str]:
    """Return the device with this id; if there is none, all devices whose ids begin so."""
    found = sorted(device for device in devices if means(name, device))
    return [name] if name in found else found


def unclear(name: str, found: Sequence[str]) -> str:
    """Return an error if the name is an ambiguous or too short prefix; else empty."""
    if len(found) > 1:
        return f"{name!r} is the beginning of {len(found)} device ids: {listed(list(found))}"
    if (match := _too_little(name)) is None:
        return ""
    return f"{name!r} is too little of a device id, which takes four characters after {match[1]}"
