"""The variables by which a container itself says how HAMi-core is to hold it.

They are in the container's own environment (HAMi, docs of HAMi-core), and the watcher writes them
into the ledger, because what the agent adds by CDI wins over them. (The kubelet puts a container's
`env` behind what a plugin answered to Allocate, and runtimes let the last one win; CDI comes after
both, and the image's own environment before both.) Invariant: none of them gives a container more
memory or more of a card than its share, unless the operator lets its namespace do so."""

from collections.abc import Mapping
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
DEFAULT: Final = "default"
FIRST, OTHERS = 0, 1


def priority_of(controls: dict[str, str]) -> int:
    """HAMi-core's number of the container's priority: 0 for `0`, else 1, as its monitor has two."""
    return FIRST if controls.get(PRIORITY) == HIGH else OTHERS


def heeded(controls: Mapping[str, str], *, may_be_unheld: bool) -> dict[str, str]:
    """The variables that count: those that end HAMi-core's hold only where that is allowed."""
    return {
        name: value
        for name, value in controls.items()
        if may_be_unheld or not ends_hold(name, value)
    }


def ends_hold(name: str, value: str) -> bool:
    """Whether the variable says that HAMi-core does not hold the container, or not to its cores."""
    return value.lower() == {DISABLE: "true", POLICY: UNHELD}.get(name)


def uncontrolled(controls: dict[str, str]) -> bool:
    """Whether HAMi-core stays out of the container."""
    return controls.get(DISABLE, "").lower() == "true"
