"""What comes out: the edits of a container, and what has to be made before it may start."""

from msgspec import Struct

from apportion.core.grants.edits import Edits


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
