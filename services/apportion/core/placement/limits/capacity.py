"""Add up what the cluster offers, and estimate what a pod takes of it."""

from collections import Counter
from typing import Final

from apportion.core.devices.catalogue import type_matches
from apportion.core.devices.worth import DEVICE
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.quotas import (
    CPU,
    MEMORY,
    MODEL,
    OF_MODEL,
    WORTH,
    Amount,
    Amounts,
)
from apportion.core.workloads.dialects.dialect import CORES, DEVICE_MEMORY, SHARES
from apportion_schemas import (
    Ask,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
)
from apportion_schemas.quantities import WHOLE

# Events that may change what a node offers.
OF_CAPACITY: Final = frozenset((
    DeviceCordoned, DeviceCordonLifted, DeviceHealthChanged, DevicesRegistered, DeviceUncordoned,
    NodeCordoned, NodeCordonLifted, NodeGone, NodeHeard, NodeObserved, NodeReported, NodeSilent,
    NodeUncordoned,
))  # fmt: skip


class Capacity:
    """The capacity of the nodes and devices that take pods, updated as nodes change."""

    def __init__(self, state: State) -> None:
        self.models: tuple[str, ...] = ()  # keys of card quotas, which name models
        self.moved = False
        self._sum: Counter[Amount] = Counter()
        self._estimates: dict[bytes, Amounts] = {}
        self.touched: dict[str, NodeState] = {}
        self._of: dict[str, Counter[Amount]] = {}
        self._state: State | None = state  # until its nodes are queued to be counted

    def refresh(self) -> bool:
        """Recount all changed nodes. Return True if the totals changed since the last call."""
        self.count(0)
        self.count(len(self.touched))
        moved, self.moved = self.moved, False
        if moved:
            self._estimates.clear()
        return moved

    def total(self, amount: Amount) -> int:
        """Return the total of this amount on all counted nodes."""
        if amount[0] != MODEL:
            return self._sum[amount]
        return sum(much for each, much in self._sum.items() if _is_of(each, amount[1]))

    def device_amounts(self) -> list[Amount]:
        """Return the amounts of the device families."""
        kinds = (each for each, much in self._sum.items() if much)  # 0: its last device is closed
        return [each for each in kinds if each[0] == WORTH and len(each) < OF_MODEL]

    def families_of(self, key: str) -> set[Amount]:
        """Return the amounts of the device families that have a model to which `key` applies."""
        return {each[:-1] for each in self._sum if _is_of(each, key)}

    def estimate(self, pod: PodState) -> Amounts:
        """Return what a pod of this shape takes on devices of average size."""
        found = self._estimates.get(pod.shape_key)
        if found is None:
            shape = pod.submitted.shape
            total, before = quotas.of_host(shape), Counter[Amount]()
            for ask in shape.asks:
                asked, wanted = self._of_ask(ask), shape.devices.use_types
                for key in self.models:
                    if not wanted or any(
                        type_matches(each, key) or type_matches(key, each) for each in wanted
                    ):
                        asked[MODEL, key] += asked[WORTH, ask.family]
                if ask.init:
                    before |= asked
                else:
                    total.update(asked)
            found = self._estimates[pod.shape_key] = total | before
        return found

    def count(self, nodes: int) -> bool:
        """Recount at most `nodes` changed nodes. Return True if none is left."""
        if self._state is not None:
            self.touched = dict(self._state.nodes)
            self._state = None
        for _ in range(min(nodes, len(self.touched))):
            name, node = self.touched.popitem()
            offered = _offered(node)
            if offered != self._of.get(name):
                self._sum.subtract(self._of.get(name, {}))
                self._sum.update(offered)
                self._of[name] = offered
                self.moved = True
        return not self.touched

    def _of_ask(self, ask: Ask) -> Counter[Amount]:
        family = ask.family
        count = max(self._sum[WORTH, family] // DEVICE, 1)
        size, cores = self._sum[DEVICE_MEMORY, family] // count, self._sum[CORES, family] // count
        slots = max(self._sum[SHARES, family] // count, 1)
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        memory = size * percent // WHOLE if ask.memory_mib is None else ask.memory_mib
        own = WHOLE if ask.whole else ask.cores
        worth = max(-(-memory * DEVICE // max(size, 1)), own * DEVICE // WHOLE, -(-DEVICE // slots))
        return Counter(
            {
                (SHARES, family): ask.count,
                (WORTH, family): min(worth, DEVICE) * ask.count,
                (DEVICE_MEMORY, family): memory * ask.count,
                (CORES, family): cores * own // WHOLE * ask.count,
            }
        )


def _is_of(amount: Amount, key: str) -> bool:
    return amount[0] == WORTH and len(amount) == OF_MODEL and type_matches(key, amount[2])


def _offered(node: NodeState) -> Counter[Amount]:
    offered: Counter[Amount] = Counter()
    if not node.ready or node.cordoned:
        return offered
    offered[CPU] = node.host.cpu_milli
    offered[MEMORY] = node.host.memory_mib
    for each in node.devices:
        device = each.device
        if each.open:
            offered[WORTH, device.family] += DEVICE
            offered[WORTH, device.family, device.model] += DEVICE
            offered[SHARES, device.family] += device.slots
            offered[DEVICE_MEMORY, device.family] += device.memory_mib
            offered[CORES, device.family] += device.cores
    return offered
