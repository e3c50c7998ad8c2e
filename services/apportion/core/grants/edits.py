"""What is added to a container before it starts, whichever front door asked for it.

These are the `containerEdits` of a CDI device, as far as we need them. Invariant: no two of them
contradict each other, so the order in which a runtime applies them does not matter.
"""

from msgspec import Struct


class Mount(Struct, frozen=True):
    """A file or folder of the node in the container."""

    host_path: str
    container_path: str
    read_only: bool = False


class DeviceNode(Struct, frozen=True):
    """A character device, by its numbers: it need not be below the node's `/dev` yet."""

    path: str
    major: int
    minor: int


class Edits(Struct, frozen=True):
    """Environment by name, mounts and device nodes.

    `cards` are those whose own CDI specification, by the vendor, comes with it: the device nodes
    and libraries without which nothing runs there.
    """

    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cards: tuple[str, ...] = ()
