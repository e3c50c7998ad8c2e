"""What grants which share, the one place where a new mode is entered; and the modes that need only
an environment and mounts. HAMi-core and MIG have modules of their own."""

from collections.abc import Callable
from typing import Final

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.grants import hami_core, mig
from apportion.core.grants.held import Edits, Grant, GrantRefused, Held, Mount, Node
from apportion_schemas.inventory import Mode


def _grant_whole(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The cards by their ids, which it has to itself; nothing holds the container to less."""
    return Grant(Edits({"NVIDIA_VISIBLE_DEVICES": ",".join(held.cards)}, cards=held.cards))


# Shares of a card under NVIDIA's Multi-Process Service, each as large as the ledger says.
#
# The daemon of the card serves all its containers. NVIDIA's own plugin gives each of them the
# same part; `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of the
# container itself make them unequal (NVIDIA, Multi-Process Service, chapter 4).

PIPES = "/tmp/nvidia-mps"  # noqa: S108 - the path where CUDA looks for its daemon


def _grant_mps(held: Held, node: Node) -> Grant:
    """The daemon's pipes, and the container's part of memory and threads.

    Raises GrantRefused: it holds several cards: a process speaks to one daemon, that of one
    card."""
    if len(held.parts) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} holds {len(held.parts)} cards under "
            "MPS; a process is served by one daemon: ask for one card, or for another mode"
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


# Ascend NPUs: whole, or cut by a template that Ascend's runtime makes when the container starts.
#
# `ASCEND_VISIBLE_DEVICES` names NPUs by their index and `ASCEND_VNPU_SPECS` the template (Ascend
# Docker Runtime). A container with a template has one NPU: the runtime cuts no other one.


def _grant_npus(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The NPUs by index, and the template.

    Raises GrantRefused: a template together with a second NPU."""
    env = {"ASCEND_VISIBLE_DEVICES": ",".join(str(part.device.index) for part in held.parts)}
    templates = [part.share.template for part in held.parts if part.share.template]
    if templates and len(held.parts) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} holds {len(held.parts)} NPUs, one of "
            f"them cut by {templates[0]}; Ascend's runtime cuts the only one of a container"
        )
    if templates:
        env["ASCEND_VNPU_SPECS"] = templates[0]
    return Grant(Edits(env))


# Ascend NPUs that are split softly: HAMi's `hami-vnpu-core` holds the container to its part.
#
# Names and values are those of HAMi's Ascend device plugin, which the library reads. Containers
# on one NPU find one another in a folder of the node that they share, by the NPU's index; each
# keeps its own count in a folder of its own. Ascend's runtime brings the device nodes and the
# driver, as for every NPU.

HOME: Final = "/hami-vnpu-core"
"""In the container; what the library's own `ld.so.preload` names is below it."""
_COMMON: Final = "/hami-shared-region"
_OWN: Final = "/hami-vnpu-shmem"
_PRELOAD: Final = "ld.so.preload"


def _grant_npus_softly(held: Held, node: Node) -> Grant:
    """The NPUs by index and the part of them: MiB, and percent where cores were asked for.

    The library knows one part for all NPUs of a container, and one folder's file to meet others in:
    the plugin gives both of the first, and so do we."""
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
    "exclusive": _grant_whole,
}
NPU_MODES: dict[Mode, Granting] = {
    "vnpu": _grant_npus,
    "hami-core": _grant_npus_softly,
    "exclusive": _grant_npus,
}
"""Of families that know templates: a whole NPU is one without a template."""


def grant(held: Held, node: Node) -> Grant:
    """What the container gets.

    Raises GrantRefused: the node cannot give it, or its devices are shared in different ways."""
    modes = {part.device.mode for part in held.parts}
    if len(modes) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} holds devices that are shared in "
            f"different ways ({', '.join(sorted(modes))}); one container has one of them"
        )
    device = held.parts[0].device
    family = FAMILIES.get(device.family)  # it need not be one of the catalogue
    by_template = family is not None and family.templates
    return (NPU_MODES if by_template else MODES)[device.mode](held, node)
