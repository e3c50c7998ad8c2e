"""The chain of device policies: what a pod or the cluster asks of the choice of devices.

Source: HAMi's `hami.io/gpu-scheduler-policy`. `binpack`, `spread` and `numa` are keys in the order
in which devices are compared. `mutex` lets only some devices through and `topology-aware` goes by
links before all keys; both come first, wherever they stand. A chain of those two alone compares as
`spread` does.

Invariant: a chain that `known` takes has a meaning here, and equal chains mean the same."""

from functools import lru_cache
from typing import Final, NamedTuple, get_args

from apportion_schemas import Policy

NUMA: Final = "numa"
MUTEX: Final = "mutex"
TOPOLOGY_AWARE: Final = "topology-aware"
CHAINABLE: Final = ("binpack", "spread", NUMA, MUTEX, TOPOLOGY_AWARE)
"""What may stand in a chain; the other policies choose node and device together and stand alone."""


class Chain(NamedTuple):
    """`keys` by which devices are compared; `idle_only`: a device with any holder will not do;
    `best_linked`: several devices are those of the fitting ones that are linked best, and a single
    one is that which is linked least."""

    keys: tuple[str, ...]
    idle_only: bool = False
    best_linked: bool = False


@lru_cache(maxsize=1024)
def chain(policy: str) -> Chain:
    """What a chain means; a name that comes twice counts once."""
    names = tuple(dict.fromkeys(policy.split(",")))
    keys = tuple(name for name in names if name not in {MUTEX, TOPOLOGY_AWARE})
    return Chain(keys or ("spread",), MUTEX in names, TOPOLOGY_AWARE in names)


def known(policy: str) -> bool:
    """Whether it is a policy for devices: one that stands alone, a chain, or nothing."""
    return policy in {"", *get_args(Policy)} or set(policy.split(",")) <= set(CHAINABLE)
