"""Read the node annotations in which HAMi and Volcano describe a node's devices.

Volcano's old device plugin marks unhealthy GPUs; the plugins of HAMi and Volcano register their
devices. Values that cannot be read are ignored. Invariant: the indexes are within the event
schema's bounds, distinct and sorted."""

import re
from collections.abc import Mapping
from typing import Final

from apportion_schemas.quantities import COUNT_MAX

UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
_REGISTERED: Final = re.compile(r"(hami\.io|volcano\.sh)/node-(register-.+|.+-register)")
_DIGITS_MAX: Final = 3


def unhealthy_indexes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indexes of devices that the node's annotations mark as unhealthy, as in `1,3`."""
    words = (word.strip() for word in annotations.get(UNHEALTHY_IDS, "").split(","))
    numbers = (int(w) for w in words if w.isascii() and w.isdecimal() and len(w) <= _DIGITS_MAX)
    return tuple(sorted({number for number in numbers if number < COUNT_MAX}))


def registered_plugin(annotations: Mapping[str, str]) -> str:
    """Return `hami` or `volcano` if its plugin registered devices on the node; else empty.

    The annotation remains when the plugin is removed."""
    for name, value in sorted(annotations.items()):
        found = _REGISTERED.fullmatch(name)
        if found and value.strip(" []:"):
            return found[1].partition(".")[0]
    return ""
