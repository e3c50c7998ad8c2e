"""The variables by which a container itself says how HAMi-core is to hold it.

They stand in the container's own environment (HAMi, docs of HAMi-core), and the watcher tells the
ledger of them, because what the agent adds would otherwise win over them. Invariant: none of them
gives a container more memory or more of a card than its share.
"""

from typing import Final

from apportion_schemas.workload import Control

PRIORITY: Final[Control] = "CUDA_TASK_PRIORITY"
"""0 goes before all others on the card; HAMi's webhook sets it from `nvidia.com/priority`."""
POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
"""`default`: cores are held to where others want them; `force`: always; `disable`: never."""
DISABLE: Final = "CUDA_DISABLE_CONTROL"
"""`true`: HAMi-core is not loaded into the container (HAMi, `server.go` of its device plugin)."""
LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
HIGH: Final = "0"
UNHELD: Final = "disable"
FIRST, OTHERS = 0, 1


def priority_of(controls: dict[str, str]) -> int:
    """HAMi-core's number of the container's priority: 0 for `0`, else 1, as its monitor has two."""
    return FIRST if controls.get(PRIORITY) == HIGH else OTHERS


def uncontrolled(controls: dict[str, str]) -> bool:
    """Whether HAMi-core stays out of the container."""
    return controls.get(DISABLE, "").lower() == "true"
