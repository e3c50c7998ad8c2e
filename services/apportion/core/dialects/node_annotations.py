"""What the annotations of a node say of its devices.

Source: Volcano's old device plugin, which marks cards on the node. A node is nobody's wish, so what
cannot be read is passed over: it takes no device off offer. Invariant: the indexes are within the
event schema's bounds, each once, in order.
"""

from collections.abc import Mapping
from typing import Final

from apportion_schemas.quantities import COUNT_MAX

UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
_DIGITS_MAX: Final = 3


def unhealthy_indexes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The devices that the annotation takes off offer, as in `1,3`."""
    words = (word.strip() for word in annotations.get(UNHEALTHY_IDS, "").split(","))
    numbers = (int(w) for w in words if w.isascii() and w.isdecimal() and len(w) <= _DIGITS_MAX)
    return tuple(sorted({number for number in numbers if number < COUNT_MAX}))
