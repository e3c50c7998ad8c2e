"""Ascend NPUs that are split softly: HAMi's `hami-vnpu-core` holds the container to its part.

Names and values are those of HAMi's Ascend device plugin, which the library reads. Containers on
one NPU find one another in a folder of the node that they share, by the NPU's index; each keeps its
own count in a folder of its own. Ascend's runtime brings the device nodes and the driver, as for
every NPU.
"""

from typing import Final

from apportion.core.grants.edits import Edits, Mount
from apportion.core.grants.held import Held, Node
from apportion.core.grants.plan import Grant

HOME: Final = "/hami-vnpu-core"
"""In the container; what the library's own `ld.so.preload` names is below it."""
_COMMON: Final = "/hami-shared-region"
_OWN: Final = "/hami-vnpu-shmem"
_PRELOAD: Final = "ld.so.preload"


def grant(held: Held, node: Node) -> Grant:
    """The NPUs by index and the part of them: MiB, and percent where cores were asked for.

    The library knows one part for all NPUs of a container, and one folder's file to meet others
    in: the plugin gives both of the first, and so do we.
    """
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
