"""By which names people may call a device: its id, or enough of the beginning of it.

Invariant: every verb and every answer takes the same names, so what a table shows of an id can be
given to any of them; and a name that several devices have is never taken for one of them."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from apportion.core.explain.text.event_text import listed

RULE: Final = (
    "Of a device's id the beginning will do: four characters after GPU-, if no other begins so."
)
"""What `--help` says of it, in these words."""
WRITE_MORE: Final = "write more of the id"
_enough: Final = re.compile(r"([A-Z]+-)*+.{4,}").fullmatch
"""What a vendor begins all ids with, if it does, as in `GPU-`, and four characters of this one."""
_too_little: Final = re.compile(r"((?:[A-Z]+-)++).{0,3}").fullmatch


def means(name: str, device: str) -> bool:
    """Whether the device may be called so."""
    return name == device or (device.startswith(name) and _enough(name) is not None)


def meant(name: str, devices: Iterable[str]) -> list[str]:
    """Which of these the name may mean: the one with this id, or else all whose ids begin so."""
    found = sorted(device for device in devices if means(name, device))
    return [name] if name in found else found


def unclear(name: str, found: Sequence[str]) -> str:
    """What is wrong with a name that does not mean just one device; empty for one of nothing."""
    if len(found) > 1:
        return f"{name!r} is the beginning of {len(found)} device ids: {listed(list(found))}"
    if (match := _too_little(name)) is None:
        return ""
    return f"{name!r} is too little of a device id, which takes four characters after {match[1]}"
