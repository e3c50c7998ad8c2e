"""A pod that another scheduler bound, and what its annotations say that it holds.

The counterpart of `placed_pod`: a dialect reads here what it would have written there. Some systems
name devices by their number on the node and leave amounts to the pod's asks; what is read says so.
Invariant: a text is understood whole, or it is `Unclear`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, MigInstance

DIGITS_MAX = 8
_RECORD_FIELDS = 4


class BoundPod(NamedTuple):
    """What there is to read: the pod's annotations, its containers in order, and what they ask."""

    annotations: Mapping[str, str]
    init_containers: Sequence[str]
    containers: Sequence[str]
    asks: Sequence[Ask]
    config: DialectConfig


class Held(NamedTuple):
    """One device of one container: named by its id, or else by its number on the node.

    `memory_mib` and `cores` are None where they follow from the ask. `place` is of a MIG instance
    that is named by its group and its position there, which the card's model makes slices of.
    """

    container: str
    family: str
    device: str = ""
    number: int = -1
    memory_mib: int | None = None
    cores: int | None = None
    instance: MigInstance | None = None
    place: tuple[str, int] | None = None


class Unclear(ValueError):
    """The annotation cannot be understood."""


def records(segment: str, *, places: bool = False) -> Iterator[tuple[str, int, int]]:
    """Id, memory and cores of each device, as in `GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:`.

    `places`: an instance may be named by its place in a group behind the id.

    Raises:
        Unclear: a device is not written like that.
    """
    for text in segment.split(":"):
        if not text:
            continue
        parts = text.split(",")
        if len(parts) != _RECORD_FIELDS or not parts[0] or ("[" in parts[0] and not places):
            raise Unclear
        yield parts[0], natural(parts[2]), natural(parts[3])


def natural(text: str) -> int:
    """A whole number of zero or more, in plain digits.

    Raises:
        Unclear: it is none, or absurdly long.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise Unclear
    return int(text)
