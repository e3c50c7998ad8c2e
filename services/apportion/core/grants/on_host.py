"""A grant for a process of the machine itself, which no container runtime stands around.

Nothing can be mounted for it and no card be hidden from it: paths are those of the node, the
library comes by `LD_PRELOAD`, and CUDA is told which cards it may see. Invariant: HAMi-core counts
cards as CUDA does, so that every limit of memory is that of its own card."""

from collections.abc import Mapping
from typing import Final

from apportion.core.grants.held import Edits, Grant, GrantRefused
from apportion_schemas import Device
from apportion_schemas.quantities import WHOLE

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_CUDA_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_REGION: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
PRELOAD: Final = "LD_PRELOAD"
_PRELOAD_FILE: Final = "/etc/ld.so.preload"
_LIBRARY: Final = "/libvgpu.so"
_NONE: Final = "-1"


def on_host(made: Grant) -> Grant:
    """The same share for a process beside its agent.

    Raises GrantRefused: a share of this kind is for containers alone, or the library's path cannot
    stand in `LD_PRELOAD`."""
    if _VISIBLE not in made.edits.env:
        raise GrantRefused(
            "a vNPU is given to containers alone: start the command by `podman run` or `docker run`"
        )
    if made.daemons:
        raise GrantRefused(
            "a share under MPS is given to containers alone, which share memory with the card's "
            "daemon apart from the machine: start the command by `podman run` or `docker run`"
        )
    env = {name: _path(value, made.edits) for name, value in made.edits.env.items()}
    # Where as many cards stand there as CUDA sees, HAMi-core takes each for a number, and an id is
    # 0 to it (`parse_cuda_visible_env` of its `utils.c`): it would count all cards as the first.
    # CUDA stops at one that is not there, so one more changes nothing but that. A single card is
    # the first anyway.
    cards = env.pop(_VISIBLE)
    env[_CUDA_VISIBLE] = f"{cards},{_NONE}" if made.region is not None and "," in cards else cards
    if _preloads(made.edits):
        mounts = {mount.container_path: mount.host_path for mount in made.edits.mounts}
        path = next(path for inside, path in mounts.items() if inside.endswith(_LIBRARY))
        if any(each.isspace() or each == ":" for each in path):
            raise GrantRefused(
                f"the agent's --library is {path!r}: the loader takes a space or a colon for the "
                "end of a path; put the file elsewhere"
            )
        env[PRELOAD] = path
    return Grant(Edits(env), region=made.region)


def unheld(edits: Edits, devices: Mapping[str, Device]) -> str:
    """What of the share nothing holds the process to, for its user to know; empty if all is held.

    `edits` are those of a container, or of `on_host`; `devices` are the node's."""
    if _REGION not in edits.env:
        return ""
    if PRELOAD not in edits.env and not _preloads(edits):
        return (
            "nothing holds the command to its share but itself: its agent has no HAMi-core; give "
            "it the path of libvgpu.so with --library"
        )
    cards = edits.env.get(_CUDA_VISIBLE, "").split(",")
    own = [devices[card].index for card in cards if card in devices]
    if 0 < int(edits.env.get(_CORES, 0)) < WHOLE and own != list(range(len(own))):
        return (
            "nothing holds the command to its cores, only to its memory: outside of a container "
            "HAMi-core measures the machine's first cards; start it by `podman run` or `docker run`"
        )
    return ""


def _preloads(edits: Edits) -> bool:
    return any(mount.container_path == _PRELOAD_FILE for mount in edits.mounts)


def _path(value: str, edits: Edits) -> str:
    """Where on the node a path of the container is; what is no such path stays as it is."""
    for mount in edits.mounts:
        if value == mount.container_path or value.startswith(f"{mount.container_path}/"):
            return mount.host_path + value[len(mount.container_path) :]
    return value
