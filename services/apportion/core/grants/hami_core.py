"""Create grants for HAMi-core, a library that is preloaded before CUDA and limits a container.

The variables are those of HAMi's and Volcano's device plugins (`CUDA_DEVICE_MEMORY_LIMIT_<i>`...).
The region (a file with the limits) exists before the container starts, so emptying the environment
does not lift the limits."""

from typing import Final

from apportion.core.grants import controls
from apportion.core.grants.held import Edits, Grant, Held, Mount, Node, RegionPlan

HOME: Final = "/usr/local/vgpu"  # in the container; HAMi-core has this path built in
REGION: Final = "share.cache"
_MIB = 1 << 20
_PRELOAD: Final = "/etc/ld.so.preload"
# where HAMi-core's processes lock: mounted per container, so that they lock no other's
_LOCKS: Final = "/tmp/vgpulock"  # noqa: S108 - HAMi-core has this path built in
# where a process without our environment looks for its region
_BARE: Final = "/tmp/cudevshr.cache"  # noqa: S108 - HAMi-core has this path built in


def grant(held: Held, node: Node) -> Grant:
    """Return a grant with the limits, and with HAMi-core's library unless the pod declines it."""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(held.cards)}
    for position, part in enumerate(held.parts):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] = f"{part.share.memory_mib}m"
    # One limit for all devices of a container: the peers use that of the first.
    env["CUDA_DEVICE_SM_LIMIT"] = str(held.parts[0].share.cores)
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{HOME}/{REGION}"
    if any(part.device.memory_mib > part.device.physical_memory_mib for part in held.parts):
        env["CUDA_OVERSUBSCRIBE"] = "true"
    # How it is limited, unless the container's own variables override it.
    env[controls.LOG_LEVEL] = str(node.log_level)
    if not node.core_limit:
        env[controls.POLICY] = controls.UNHELD
    elif not held.may_be_unheld:  # overrides the image and the container
        env[controls.POLICY] = controls.DEFAULT
    env |= {name: value for name, value in held.controls.items() if name != controls.DISABLE}
    folder = node.folder(held)
    mounts = [Mount(folder, HOME), Mount(folder, _LOCKS)]
    if node.library and not controls.uncontrolled(held.controls):
        mounts += [
            Mount(f"{folder}/{REGION}", _BARE),
            Mount(node.library, f"{HOME}/libvgpu.so", read_only=True),
            Mount(node.preload, _PRELOAD, read_only=True),
        ]
    region = RegionPlan(
        path=f"{folder}/{REGION}",
        devices=tuple(part.device.id for part in held.parts),
        memory=tuple(part.share.memory_mib * _MIB for part in held.parts),
        cores=(held.parts[0].share.cores,) * len(held.parts),
        priority=controls.priority_of(held.controls),
    )
    return Grant(Edits(env, tuple(mounts), cards=held.cards), region=region)
