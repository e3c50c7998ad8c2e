"""Adapt a container's grant to a process that runs on the node itself, outside of containers.

Files cannot be mounted there, and GPUs cannot be hidden. Instead, `LD_PRELOAD` loads the library,
`CUDA_VISIBLE_DEVICES` selects the GPUs, and paths are the node's. Invariant: HAMi-core counts GPUs
as CUDA does, so every memory limit applies to its own GPU."""

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
    """Adapt the grant to a process outside of a container.

    Raises GrantRefused if shares of this mode need a container, or if `LD_PRELOAD` cannot contain
    the library's path."""
    if _VISIBLE not in made.edits.env:
        raise GrantRefused(
            "a vNPU works only in a container; start the command with `podman run` or `docker run`"
        )
    if made.daemons:
        raise GrantRefused(
            "a share under MPS works only in a container, which mounts the MPS daemon's shared "
            "memory; start the command with `podman run` or `docker run`"
        )
    env = dict(made.edits.env)
    for name, value in made.edits.env.items():  # paths of the container become the node's
        for mount in made.edits.mounts:
            if value == mount.container_path or value.startswith(f"{mount.container_path}/"):
                env[name] = mount.host_path + value[len(mount.container_path) :]
                break
    # If the variable has as many entries as CUDA sees GPUs, HAMi-core parses each as a number, and
    # an id parses as 0 (`parse_cuda_visible_env` of its `utils.c`): every GPU would count as the
    # first. CUDA stops at an entry that does not exist, so "-1" avoids that and changes nothing
    # else. A single GPU is the first anyway.
    cards = env.pop(_VISIBLE)
    env[_CUDA_VISIBLE] = f"{cards},{_NONE}" if made.region is not None and "," in cards else cards
    if _preloads(made.edits):
        mounts = {mount.container_path: mount.host_path for mount in made.edits.mounts}
        path = next(path for inside, path in mounts.items() if inside.endswith(_LIBRARY))
        if any(each.isspace() or each == ":" for each in path):
            raise GrantRefused(
                f"the agent's --library is {path!r}, but the dynamic loader ends a path at "
                "a space or colon; move the file to a path without them"
            )
        env[PRELOAD] = path
    return Grant(Edits(env), region=made.region)


def unheld(edits: Edits, devices: Mapping[str, Device]) -> str:
    """Return a warning for the user if a limit of the share is not enforced; empty otherwise."""
    if _REGION not in edits.env:
        return ""
    if PRELOAD not in edits.env and not _preloads(edits):
        return (
            "the command's share is not enforced, because the agent has no HAMi-core; set the "
            "agent's --library to the path of libvgpu.so"
        )
    cards = edits.env.get(_CUDA_VISIBLE, "").split(",")
    own = [devices[card].index for card in cards if card in devices]
    if 0 < int(edits.env.get(_CORES, 0)) < WHOLE and own != list(range(len(own))):
        return (
            "only the command's memory is enforced, not its cores: outside a container, HAMi-core "
            "measures the machine's first GPUs; start it with `podman run` or `docker run`"
        )
    return ""


def _preloads(edits: Edits) -> bool:
    return any(mount.container_path == _PRELOAD_FILE for mount in edits.mounts)
