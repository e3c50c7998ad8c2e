"""Data types for a container's shares, the grant made from them, and the paths on the node.

Invariant: a runtime may apply the edits of a grant in any order."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from apportion.core.grants.controls import heeded
from apportion_schemas import Device, Share
from apportion_schemas.catalogue import token


class Mount(Struct, frozen=True):
    """A file or folder of the node that is mounted into the container."""

    host_path: str
    container_path: str
    read_only: bool = False


class DeviceNode(Struct, frozen=True):
    """A character device that a container may open; the node's `/dev` need not contain it yet."""

    path: str
    major: int
    minor: int


class Edits(Struct, frozen=True):
    """What to change in a container: environment variables, mounts and device nodes.

    For each device in `cards`, the vendor's CDI specification applies as well."""

    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cards: tuple[str, ...] = ()


class RegionPlan(Struct, frozen=True):
    """The limits to write into HAMi-core's region before the container's first process starts.

    Each tuple has one entry per device, in the container's order."""

    path: str
    devices: tuple[str, ...]  # ids
    memory: tuple[int, ...]  # bytes; 0: unlimited
    cores: tuple[int, ...]  # percent; 100: unlimited
    priority: int = 1  # 0 goes first


class Grant(Struct, frozen=True):
    """What a node must set up so that one container can use its devices."""

    edits: Edits
    region: RegionPlan | None = None
    daemons: tuple[str, ...] = ()  # GPUs whose MPS daemon must run
    folders: tuple[str, ...] = ()  # writable for any user


class GrantRefused(ValueError):
    """Raised if the node cannot provide a share that the ledger allocated."""


class MadeInstance(Struct, frozen=True):
    """A MIG instance that exists on the GPU: its id (`MIG-…`), and its device nodes."""

    id: str
    device_nodes: tuple[DeviceNode, ...] = ()


class Part(Struct, frozen=True):
    """One share with its device and, in MIG mode, the MIG instance created for the share."""

    share: Share
    device: Device
    instance: MadeInstance | None = None


class Held(Struct, frozen=True):
    """All shares of one container, in the order in which the container sees the devices."""

    pod: str
    container: str
    parts: tuple[Part, ...]
    controls: dict[str, str] = {}  # variables of its environment (module `controls`)
    may_be_unheld: bool = False  # the controls may lift its limits

    @property
    def cards(self) -> tuple[str, ...]:
        """Return the ids of the container's devices in the order of `parts`, without duplicates."""
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
        """Collect the shares of one container from a placement.

        Devices are in the order of their index, as in NVML and CUDA
        (`CUDA_DEVICE_ORDER=PCI_BUS_ID`), because HAMi-core numbers its limits in this order. Raises
        GrantRefused if the container has no share on this node, or the device of a share is
        missing."""
        own = [share for share in shares if share.container == container]
        if not own:
            raise GrantRefused(f"container {container!r} of pod {pod} has no share on this node")
        for share in own:
            if share.device not in devices:
                raise GrantRefused(
                    f"container {container!r} of pod {pod} has a share of {share.device}, which is "
                    "not on this node; the device was removed, or another driver is loaded"
                )
        starts = {each: each.instance.start if each.instance else 0 for each in own}
        own.sort(key=lambda each: (devices[each.device].index, starts[each]))
        made = instances or {}
        parts = tuple(Part(each, devices[each.device], made.get(each)) for each in own)
        said = heeded(controls or {}, may_be_unheld=may_be_unheld)
        return cls(pod, container, parts, said, may_be_unheld)


class Node(Struct, frozen=True):
    """The settings of one node's grants, and the paths of the files that they need.

    If `library` and `preload` are empty, nothing enforces a container's share."""

    shares: str = "/var/lib/apportion/shares"  # a folder per container
    library: str = ""  # HAMi-core's `libvgpu.so`
    preload: str = ""  # the file to mount as `/etc/ld.so.preload`
    mps: str = "/run/apportion/mps"  # a folder per MPS daemon of a GPU
    npu_library: str = ""  # the folder of HAMi's library for NPUs
    npus: str = "/run/apportion/npus"  # a folder for all containers with part of an NPU
    log_level: int = 1  # of HAMi-core, 0 to 4
    core_limit: bool = True

    def folder(self, held: Held) -> str:
        """Return the container's own folder on the node, which is kept across restarts."""
        return f"{self.shares}/{token(held.pod)}_{token(held.container)}"
