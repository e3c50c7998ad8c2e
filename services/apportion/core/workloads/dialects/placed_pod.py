"""A pod with a place, as a dialect's device plugin wants to be told of it.

Invariant: rendering depends on what is here and on nothing else; the time is handed in.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from apportion.core.devices.demand import memory_needed_mib
from apportion.core.workloads.dialects.borrowing import lent
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, PodPlaced, PodSubmitted, Share

NANOSECONDS = 1_000_000_000


class PlacedPod(NamedTuple):
    """The pod, its placement, the node's devices by id, and when it is bound (Unix time in ns)."""

    pod: PodSubmitted
    placed: PodPlaced
    devices: Mapping[str, Device]
    now_ns: int
    config: DialectConfig

    @property
    def seconds(self) -> str:
        """Unix time in whole seconds."""
        return str(self.now_ns // NANOSECONDS)

    @property
    def nanoseconds(self) -> str:
        """The time of the placement, as Unix time in nanoseconds."""
        return str(self.now_ns)

    @property
    def init_containers(self) -> tuple[str, ...]:
        """Init containers in the order of the spec."""
        return self._named(self.pod.init_containers, init=True)

    @property
    def containers(self) -> tuple[str, ...]:
        """Containers in the order of the spec."""
        return self._named(self.pod.containers, init=False)

    def shares(self, container: str) -> list[Share]:
        """What the container gets, in the order of its asks: what it holds, unless it borrows."""
        borrower = next((ask for ask in self.pod.borrowing if ask.container == container), None)
        if borrower is not None:
            return lent(borrower, self.pod, self.placed.shares, self.devices)
        return [share for share in self.placed.shares if share.container == container]

    def ask(self, container: str) -> Ask:
        """What the container asked for."""
        asks = (*self.pod.borrowing, *self.pod.shape.asks)
        return next(ask for ask in asks if ask.container == container)

    def asked_memory_mib(self, share: Share) -> int:
        """What was asked of the device, which a MIG instance may exceed."""
        return memory_needed_mib(self.ask(share.container), self.devices[share.device])

    def index_of(self, share: Share) -> int:
        """The number of the device on its node."""
        return self.devices[share.device].index

    def _named(self, named: tuple[str, ...], *, init: bool) -> tuple[str, ...]:
        """Those of the spec; a pod that came without them (a trace) has those that ask."""
        if self.pod.containers:
            return named
        asks = (*self.pod.shape.asks, *self.pod.borrowing)
        return tuple(dict.fromkeys(ask.container for ask in asks if ask.init is init))


def record(device: str, kind: str, memory: int, cores: int) -> str:
    """One device of a container as HAMi and Volcano write it; the colon ends it."""
    return f"{device},{kind},{memory},{cores}:"


def commas(numbers: Iterable[int]) -> str:
    """Numbers in increasing order with commas between them, as in `0,2`."""
    return ",".join(map(str, numbers))
