"""The environment variables by which a container controls its own limits in HAMi-core.

The watcher copies the variables from the pod's spec to the ledger. What the agent sets through CDI
overrides the spec, the image and a device plugin. Invariant: no variable gives a container more
than its share, unless the operator allows it for the namespace."""

from collections.abc import Mapping
from typing import Final

from apportion_schemas.workload import Control

# 0 goes before all others on the device; HAMi's webhook sets it from `nvidia.com/priority`
PRIORITY: Final[Control] = "CUDA_TASK_PRIORITY"
# `default`: limit cores while others need them; `force`: always; `disable`: never
POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
# `true`: HAMi-core is not loaded into the container (HAMi, `server.go` of its device plugin)
DISABLE: Final = "CUDA_DISABLE_CONTROL"
LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
HIGH: Final = "0"
UNHELD: Final = "disable"
DEFAULT: Final = "default"


def priority_of(controls: dict[str, str]) -> int:
    """Return the container's priority in HAMi-core: 0 is high, 1 is the default."""
    return 0 if controls.get(PRIORITY) == HIGH else 1


def heeded(controls: Mapping[str, str], *, may_be_unheld: bool) -> dict[str, str]:
    """Return the variables that take effect.

    Variables that lift a limit take effect only if `may_be_unheld`."""
    return {
        name: value
        for name, value in controls.items()
        if may_be_unheld or not ends_hold(name, value)
    }


def ends_hold(name: str, value: str) -> bool:
    """Return True if the variable switches off HAMi-core or its limit on compute."""
    return value.lower() == {DISABLE: "true", POLICY: UNHELD}.get(name)


def uncontrolled(controls: dict[str, str]) -> bool:
    """Return True if the variables keep HAMi-core from being loaded into the container."""
    return controls.get(DISABLE, "").lower() == "true"
