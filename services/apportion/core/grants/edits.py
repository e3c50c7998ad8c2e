"""What comes out: the edits of a container, whichever front door asked for it, and what has to be
made before it may start.

The edits are the `containerEdits` of a CDI device, as far as we need them. Invariant: no two of
them contradict each other, so the order in which a runtime applies them does not matter.
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


class RegionPlan(Struct, frozen=True):
    """The limits that HAMi-core finds in its region before the container's first process does.

    One entry per device, in the container's order: its id, the memory in bytes and the percent of
    its compute (0 and 100: as much as there is). `priority` 0 goes before 1.
    """

    path: str
    devices: tuple[str, ...]
    memory: tuple[int, ...]
    cores: tuple[int, ...]
    priority: int = 1


class Grant(Struct, frozen=True):
    """What one container gets. `daemons` are the cards whose MPS daemon has to run for it.

    `folders` have to be there, and be its processes' to write in, whoever they run as.
    """

    edits: Edits
    region: RegionPlan | None = None
    daemons: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
