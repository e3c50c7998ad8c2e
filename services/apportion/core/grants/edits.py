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


class Edits(Struct, frozen=True):
    """Environment by name, mounts, and device nodes (`/dev/nvidia0`) by their path on the node."""

    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
