"""Match the names that users type: a device's id or a prefix of it, and similar names.

Invariant: an ambiguous prefix selects no device."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from apportion.core.explain.text.words import LISTED, device_words, listed
from apportion.core.names import ALIKE, natural, near

RULE: Final = "Any unique prefix of a device id works (at least 4 characters after GPU-)."
WRITE_MORE: Final = "write more of the id"
# The vendor's prefix, if any, such as `GPU-`, and at least four characters
_enough: Final = re.compile(r"([A-Z]+-)*+.{4,}").fullmatch
_too_little: Final = re.compile(r"((?:[A-Z]+-)++).{0,3}").fullmatch


def means(name: str, device: str) -> bool:
    """Return True if the name is the device's id or a long enough prefix of it."""
    return name == device or (device.startswith(name) and _enough(name) is not None)


def meant(name: str, devices: Iterable[str]) -> list[str]:
    """Return the device with this id, or else all devices whose ids begin with `name`."""
    found = sorted(device for device in devices if means(name, device))
    return [name] if name in found else found


def unclear(name: str, found: Sequence[str]) -> str:
    """Return an error if the name is an ambiguous or too short prefix; else empty."""
    if len(found) > 1:
        return f"{name!r} is the beginning of {len(found)} device ids: {listed(list(found))}"
    if (match := _too_little(name)) is None:
        return ""
    return f"{name!r} is too short: a device id needs at least four characters after {match[1]}"


def did_you_mean(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """Return text such as `did you mean mps-1?`; empty if no known name is similar."""
    found = near(name, known, alike=alike)
    return f"did you mean {listed(found)}?" if found else ""


def named(what: str, known: Iterable[str], most: int = LISTED) -> str:
    """Return which names exist, as in `the nodes are big-1, mig-1, mps-1 and 4 more`."""
    names = sorted(set(known), key=natural)
    return f"the {what} are {listed(names, most)}" if names else f"there are no {what}"


def target_meant(name: str, nodes: Iterable[str], devices: Iterable[str]) -> str:
    """Return similar names of nodes and devices, or else the commands that list them."""
    listing = "list them with `apportion get nodes` or `apportion get devices`"
    shown = [(each, device_words(each)) for each in devices]
    ids = [short if len(name) <= len(short) else each for each, short in shown]
    return did_you_mean(name, [*nodes, *ids]) or listing
