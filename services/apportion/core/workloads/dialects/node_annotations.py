"""Read facts about a node's devices that other systems write into its annotations.

Sources: Volcano's old device plugin, which marks unhealthy GPUs, and the plugins of HAMi and
Volcano, which register their devices. Unreadable values are ignored. Invariant: the indexes are
within the event schema's bounds, distinct and sorted."""

import re
from collections.abc import Mapping
from typing import Final

from apportion_schemas.quantities import COUNT_MAX

UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
_REGISTERED: Final = re.compile(r"(hami\.io|volcano\.sh)/node-(register-.+|.+-register)")
_DIGITS_MAX: Final = 3


def unhealthy_indexes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the devices that the annotation marks as unhealthy, as in `1,3`."""
    words = (word.strip() for word in annotations.get(UNHEALTHY_IDS, "").split(","))
    numbers = (int(w) for w in words if w.isascii() and w.isdecimal() and len(w) <= _DIGITS_MAX)
    return tuple(sorted({number for number in numbers if number < COUNT_MAX}))


def registered_plugin(annotations: Mapping[str, str]) -> str:
    """Return the system whose plugin registered devices on the node, or empty.

    The result is `hami` or `volcano`. An annotation remains after its plugin is removed."""
    for name, value in sorted(annotations.items()):
        found = _REGISTERED.fullmatch(name)
        if found and value.strip(" []:"):
            return found[1].partition(".")[0]
    return ""
