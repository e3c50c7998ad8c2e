"""What a container holds, what it gets for that, and where the node keeps what it needs.

What it gets are the `containerEdits` of a CDI device, as far as we need them, whichever front door
asked for it, and what has to be made before it may start. Invariant: no two edits contradict each
other, so the order in which a runtime applies them does not matter."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from apportion.core.grants.controls import heeded
from apportion_schemas import Device, Share
from apportion_schemas.catalogue import token


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
    and libraries without which nothing runs there."""

    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cards: tuple[str, ...] = ()


class RegionPlan(Struct, frozen=True):
    """The limits that HAMi-core finds in its region before the container's first process does.

    One entry per device, in the container's order: its id, the memory in bytes and the percent of
    its compute (0 and 100: as much as there is). `priority` 0 goes before 1."""

    path: str
    devices: tuple[str, ...]
    memory: tuple[int, ...]
    cores: tuple[int, ...]
    priority: int = 1


class Grant(Struct, frozen=True):
    """What one container gets. `daemons` are the cards whose MPS daemon has to run for it.

    `folders` have to be there, and be its processes' to write in, whoever they run as."""

    edits: Edits
    region: RegionPlan | None = None
    daemons: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class GrantRefused(ValueError):
    """The node cannot give what the ledger says; the message says which share, and why."""


class MadeInstance(Struct, frozen=True):
    """A MIG instance that is there: its id, as in `MIG-…`, and what lets a container use it."""

    id: str
    device_nodes: tuple[DeviceNode, ...] = ()


class Part(Struct, frozen=True):
    """One share with the device that it is of, and the MIG instance that was made for it."""

    share: Share
    device: Device
    instance: MadeInstance | None = None


class Held(Struct, frozen=True):
    """All that one container holds, in the order in which it sees its devices.

    `controls` are the variables of the container's own environment that say how it is to be held
    (`controls`); `may_be_unheld`: they may say that it is not held at all."""

    pod: str
    container: str
    parts: tuple[Part, ...]
    controls: dict[str, str] = {}
    may_be_unheld: bool = False

    @property
    def cards(self) -> tuple[str, ...]:
        """The ids of its cards, each once, in this order."""
        return tuple(dict.fromkeys(part.device.id for part in self.parts))

    @classmethod
    def of(
        cls,
        pod: str,
        container: str,
        shares: Iterable[Share],
        devices: Mapping[str, Device],
        *,
        controls: Mapping[str, str] | None = None,
        may_be_unheld: bool = False,
        instances: Mapping[Share, MadeInstance] | None = None,
    ) -> "Held":
        """The container's part of a placement.

        Devices come by their index, as NVML and CUDA (`CUDA_DEVICE_ORDER=PCI_BUS_ID`) count them:
        HAMi-core numbers its limits in this order.

        Raises GrantRefused: it holds nothing here, or a device that this node does not have."""
        own = [share for share in shares if share.container == container]
        if not own:
            raise GrantRefused(f"container {container!r} of pod {pod} holds no share here")
        for share in own:
            if share.device not in devices:
                raise GrantRefused(
                    f"container {container!r} of pod {pod} holds {share.device}, which this node "
                    "does not have; it was taken out, or another driver answers"
                )
        starts = {each: each.instance.start if each.instance else 0 for each in own}
        own.sort(key=lambda each: (devices[each.device].index, starts[each]))
        made = instances or {}
        parts = tuple(Part(each, devices[each.device], made.get(each)) for each in own)
        said = heeded(controls or {}, may_be_unheld=may_be_unheld)
        return cls(pod, container, parts, said, may_be_unheld)


class Node(Struct, frozen=True):
    """Where this node has what containers get.

    `library` is HAMi-core's `libvgpu.so` and `preload` the file that becomes `/etc/ld.so.preload`;
    both empty where the node has none: then nothing holds a container to its share but itself.
    `shares` has a folder of each container, and `mps` has a folder of each card's MPS daemon.
    `log_level` is HAMi-core's own, 0 to 4. `npu_library` is the folder of HAMi's library for NPUs,
    and `npus` the one in which containers on one NPU meet."""

    shares: str = "/var/lib/apportion/shares"
    library: str = ""
    preload: str = ""
    mps: str = "/run/apportion/mps"
    npu_library: str = ""
    npus: str = "/run/apportion/npus"
    log_level: int = 1
    core_limit: bool = True

    def folder(self, held: Held) -> str:
        """The folder of one container, which outlives its restarts."""
        return f"{self.shares}/{token(held.pod)}_{token(held.container)}"
