"""Shares of a card under NVIDIA's Multi-Process Service, each as large as the ledger says.

The daemon of the card serves all its containers. NVIDIA's own plugin gives each of them the same
part; `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of the container
itself make them unequal (NVIDIA, Multi-Process Service, chapter 4).
"""

from apportion.core.grants.edits import Edits, Mount
from apportion.core.grants.held import GrantRefused, Held, Node
from apportion.core.grants.plan import Grant

PIPES = "/tmp/nvidia-mps"  # noqa: S108 - the path where CUDA looks for its daemon


def grant(held: Held, node: Node) -> Grant:
    """The daemon's pipes, and the container's part of memory and threads.

    Raises:
        GrantRefused: it holds several cards: a process speaks to one daemon, that of one card.
    """
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
