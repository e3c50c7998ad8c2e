"""Parse a chain of device policies, as in HAMi's `hami.io/gpu-scheduler-policy`.

`binpack`, `spread` and `numa` are sort keys, in the order in which they are written. `mutex` allows
only idle devices. `topology-aware`, anywhere in the chain, sorts by links first. A chain without
sort keys sorts as `spread`. Invariant: every chain that `known` accepts has a meaning here."""

from functools import lru_cache
from typing import Final, NamedTuple, get_args

from apportion_schemas import Policy

NUMA: Final = "numa"
MUTEX: Final = "mutex"
TOPOLOGY_AWARE: Final = "topology-aware"
# policies that may be in a chain; the others choose node and device together and are used alone
CHAINABLE: Final = ("binpack", "spread", NUMA, MUTEX, TOPOLOGY_AWARE)


class Chain(NamedTuple):
    """A parsed chain of device policies.

    If `idle_only`, the device must be unused. If `best_linked`, a pod that asks for several devices
    gets the best linked ones, and a pod that asks for one gets the least linked."""

    keys: tuple[str, ...]  # the sort keys of devices
    idle_only: bool = False
    best_linked: bool = False


@lru_cache(maxsize=1024)
def chain(policy: str) -> Chain:
    """Parse a chain of device policies. A policy that is named twice counts once."""
    names = tuple(dict.fromkeys(policy.split(",")))
    keys = tuple(name for name in names if name not in {MUTEX, TOPOLOGY_AWARE})
    return Chain(keys or ("spread",), MUTEX in names, TOPOLOGY_AWARE in names)


def known(policy: str) -> bool:
    """Return True if the text is a device policy: a single policy, a chain, or empty."""
    return policy in {"", *get_args(Policy)} or set(policy.split(",")) <= set(CHAINABLE)
