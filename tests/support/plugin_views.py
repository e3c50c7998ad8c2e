"""Parse a pod's annotations as the device plugins of HAMi and Volcano do.

The parsers share no code with our renderer. They implement only the text format, and know nothing
about placements."""

from typing import NamedTuple


class Record(NamedTuple):
    """One device of a container, as HAMi and Volcano encode it."""

    device: str
    kind: str
    memory: int
    cores: int


def records(segment: str) -> list[Record]:
    """Parse repeated `UUID,Type,memory,cores:`; every record ends with a colon."""
    parts = segment.split(":")
    assert parts.pop() == ""
    found = []
    for part in parts:
        device, kind, memory, cores = part.split(",")
        found.append(Record(device, kind, int(memory), int(cores)))
    return found


def hami_containers(text: str) -> list[list[Record]]:
    """Parse HAMi's annotation, and return a list of devices for each container.

    Containers without devices are included. Every container ends with a semicolon."""
    segments = text.split(";")
    assert segments.pop() == ""
    return [records(segment) if segment else [] for segment in segments]


def volcano_containers(text: str) -> list[list[Record]]:
    """Parse Volcano's annotation into a list of devices for each container that has any."""
    return [records(segment) for segment in text.split(";")]


def mig_position(device: str) -> tuple[str, str, int]:
    """Parse `GPU-…[group-position]` into GPU, group and position.

    There must be exactly one hyphen between the brackets."""
    uuid, _, rest = device.partition("[")
    assert rest.endswith("]")
    group, position = rest[:-1].split("-")
    return uuid, group, int(position)
