"""Create the grant of a container, by the sharing mode of its devices.

HAMi-core and MIG have modules of their own; all other modes need only environment and mounts."""

from collections.abc import Callable
from typing import Final

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.grants import hami_core, mig
from apportion.core.grants.held import Edits, Grant, GrantRefused, Held, Mount, Node
from apportion_schemas.inventory import Mode

# Shares of a GPU under NVIDIA's Multi-Process Service, each as large as in the ledger.
#
# One daemon per GPU serves all its containers. NVIDIA's own plugin gives each of them the same
# part; `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in the
# container's environment make parts of different size (NVIDIA, Multi-Process Service, chapter 4).

PIPES = "/tmp/nvidia-mps"  # noqa: S108 - the path where CUDA looks for its daemon


def _grant_mps(held: Held, node: Node) -> Grant:
    if len(held.parts) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} has {len(held.parts)} GPUs under MPS, "
            "but an MPS daemon serves one GPU; request one GPU, or another mode"
        )
    (part,) = held.parts
    env = {
        "NVIDIA_VISIBLE_DEVICES": part.device.id,
        "CUDA_MPS_PIPE_DIRECTORY": PIPES,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={part.share.memory_mib}M",
    }
    if part.share.cores:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(part.share.cores)
    folder = f"{node.mps}/{part.device.id}"
    mounts = (Mount(f"{folder}/pipe", PIPES), Mount(f"{folder}/shm", "/dev/shm"))  # noqa: S108
    return Grant(Edits(env, mounts, cards=held.cards), daemons=held.cards)


# Ascend NPUs: whole, or cut by a template when Ascend's runtime starts the container.
#
# `ASCEND_VISIBLE_DEVICES` has the index of each NPU and `ASCEND_VNPU_SPECS` the template (Ascend
# Docker Runtime). A container with a template has exactly one NPU.


def _grant_npus(held: Held, node: Node) -> Grant:  # noqa: ARG001 - the signature of every mode
    env = {"ASCEND_VISIBLE_DEVICES": ",".join(str(part.device.index) for part in held.parts)}
    templates = [part.share.template for part in held.parts if part.share.template]
    if templates and len(held.parts) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} has {len(held.parts)} NPUs, and a "
            f"part of one ({templates[0]}), but Ascend's runtime cannot combine a part with other "
            "NPUs; request one part, or whole NPUs"
        )
    if templates:
        env["ASCEND_VNPU_SPECS"] = templates[0]
    return Grant(Edits(env))


# Ascend NPUs that are split softly: HAMi's `hami-vnpu-core` limits the container to its part.
#
# Names and values are those of HAMi's Ascend device plugin, which the library reads. Containers
# on one NPU meet in a shared folder of the node, by the NPU's index; each also has a folder of its
# own for its counts. Ascend's runtime adds the device nodes and the driver, as for every NPU.
#
# The library has one limit and one shared file for all NPUs of a container: like the plugin, we
# take both from the first.

# in the container; the library's own `ld.so.preload` names a path below it
HOME: Final = "/hami-vnpu-core"
_COMMON: Final = "/hami-shared-region"
_OWN: Final = "/hami-vnpu-shmem"
_PRELOAD: Final = "ld.so.preload"


def _grant_npus_softly(held: Held, node: Node) -> Grant:
    first = held.parts[0]
    env = {
        "ASCEND_VISIBLE_DEVICES": ",".join(str(part.device.index) for part in held.parts),
        "NPU_MEM_QUOTA": str(first.share.memory_mib),
        "NPU_GLOBAL_SHM_PATH": f"{_COMMON}/{first.device.index}_global_registry",
        "NPU_LOCAL_SHM_PATH": f"{_OWN}/vnpu_local_shmem",
    }
    if first.share.cores:
        env["NPU_PRIORITY"] = str(first.share.cores)
    own = node.folder(held)
    mounts = [Mount(node.npus, _COMMON), Mount(own, _OWN)]
    if node.npu_library:
        mounts += [
            Mount(node.npu_library, HOME, read_only=True),
            Mount(f"{node.npu_library}/{_PRELOAD}", f"/etc/{_PRELOAD}", read_only=True),
        ]
    return Grant(Edits(env, tuple(mounts)), folders=(node.npus, own))


Granting = Callable[[Held, Node], Grant]
MODES: dict[Mode, Granting] = {
    "hami-core": hami_core.grant,
    "mps": _grant_mps,
    "mig": mig.grant,
    "vnpu": _grant_npus,
    "exclusive": lambda held, _: Grant(
        Edits({"NVIDIA_VISIBLE_DEVICES": ",".join(held.cards)}, cards=held.cards)
    ),
}
# of families with templates; a whole NPU is one without a template
NPU_MODES: dict[Mode, Granting] = {
    "vnpu": _grant_npus,
    "hami-core": _grant_npus_softly,
    "exclusive": _grant_npus,
}


def grant(held: Held, node: Node) -> Grant:
    """Return what the container needs to use its shares.

    Raises GrantRefused if the node cannot provide it, or its devices have different modes."""
    modes = {part.device.mode for part in held.parts}
    if len(modes) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} has devices in different sharing "
            f"modes ({', '.join(sorted(modes))}); a container can use only one mode"
        )
    device = held.parts[0].device
    family = FAMILIES.get(device.family)  # it need not be one of the catalogue
    by_template = family is not None and family.templates
    return (NPU_MODES if by_template else MODES)[device.mode](held, node)
