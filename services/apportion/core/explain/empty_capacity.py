"""What nodes could run when empty, and what each of them lacks now.

A node may be too small even when empty, and advice must not point there. Invariant: a node "could
take" a pod only if the pod fits on the empty node."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import structs

from apportion.core.devices.shares import template_cpu_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.feasibility import NO_PLACE, Verdict, refused_amount, refused_node
from apportion.core.placement.feasibility.evaluator import (
    Rules,
    devices_feasibility,
    feasibility,
    rules_of,
    usable,
)
from apportion.core.placement.feasibility.occupancy import (
    Occupancy,
    empty,
    now,
    on_offer,
    uncordoned,
    without,
)
from apportion_schemas import MigSize, NearMiss, PodRefused, RefusalCode, Shape

T = TypeVar("T")
NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could hold a pod of which the nearest are looked for

Build = tuple[tuple[str, str, str, int, int, int, int, tuple[MigSize, ...]], ...]


class Room:
    """Answers questions about empty nodes; valid for one unchanged state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_build: dict[Build, list[NodeState]] = {}
        self._done: dict[tuple[str, bytes], Any] = {}

    def most(self, shape: Shape) -> int:
        """Return an upper bound for the number of such pods on the empty fleet."""
        rules = rules_of(self._state, shape)
        return sum(_most_pods(shape, node, rules) for node in self._state.nodes.values())

    def devices_short(self, shape: Shape, miss: NearMiss) -> int:
        """Return how many more empty devices the pod needs on this node."""
        node = self._state.nodes.get(miss.node)
        wanted, free = self.empty_devices(shape, node) if node is not None else (0, 0)
        return max(wanted - free, 0)

    def possible(self, pod: PodState, refused: PodRefused) -> tuple[NearMiss, ...]:
        """Return the event's nearest nodes that could take the pod; searches no others."""
        shape = pod.submitted.shape
        near = {miss.node: self._state.nodes.get(miss.node) for miss in refused.nearest}
        could = {
            name for name, node in near.items() if node is not None and self.holds(shape, node)
        }
        return tuple(miss for miss in refused.nearest if miss.node in could)

    def nearest(self, shape: Shape) -> tuple[NearMiss, ...] | None:
        """Return what the nearest nodes that could take the pod lack; None if none could."""
        could = list(islice(self.could(shape), NODES_WEIGHED))
        misses = [found for node in could if (found := self.miss(shape, node)) is not None]
        misses.sort(key=lambda each: (self.devices_short(shape, each[1]), each[0]))
        return tuple(miss for _, miss in misses[:NEAREST_KEPT]) if could else None

    def with_nothing_there(self, shape: Shape, refused: PodRefused) -> PodRefused:
        """Return the refusal on an empty fleet, of a pod that no node could take."""
        alike, reasons = _unnamed(shape), Counter[RefusalCode]()
        rules, verdicts = rules_of(self._state, shape), list[tuple[NodeState, Verdict]]()
        for nodes in self._builds():
            of_build = devices_feasibility(shape, empty(nodes[0]).devices, rules)
            for node in nodes:
                verdict = (
                    refused_node(shape, empty(node)) or of_build
                    if alike == shape
                    else feasibility(shape, node, empty, rules)
                )
                if verdict is not None and node.present:
                    reasons[verdict.code] += 1
                    verdicts.append((node, verdict))
        near = nsmallest(NEAREST_KEPT, verdicts, key=lambda each: (each[1].order, each[0].name))
        return structs.replace(
            refused,
            nodes=len(verdicts),
            reasons=dict(reasons),
            nearest=tuple(_near(node, verdict) for node, verdict in near),
        )

    def lacks_only(self, shape: Shape, node: NodeState, pods: Iterable[PodState]) -> bool:
        """Return True if the node lacks only what ending `pods` would free."""
        if self.miss(shape, node) is None:
            return False
        return self.miss(shape, node, without(pods)) is None

    def fits_on_offer(self, shape: Shape, node: NodeState) -> bool:
        """Return True if such a pod would fit now without cordons and device failures."""
        return self.holds(shape, node) and self.miss(shape, node, on_offer) is None

    def fits_uncordoned(
        self, shape: Shape, node: NodeState, code: RefusalCode, device: str = ""
    ) -> bool:
        """Return True if such a pod would fit now if this one cordon were lifted."""
        return self.miss(shape, node, uncordoned(code, device)) is None

    def would_do(self, shape: Shape, node: NodeState) -> set[str]:
        """Return the devices of the node that could satisfy an ask if they were empty."""
        rules = rules_of(self._state, shape)
        found = (usable(ask, shape.devices, node.devices, rules) for ask in shape.asks)
        return {node.devices[place].device.id for each in found for place, _ in each}

    def _builds(self) -> Iterable[list[NodeState]]:
        """Return the nodes, grouped by equal devices."""
        if not self._by_build:
            for node in self._state.nodes.values():
                build = tuple(
                    (each.family, each.model, each.mode, each.memory_mib, each.physical_memory_mib,
                     each.cores, each.slots, each.mig_sizes)
                    for each in (held.device for held in node.devices)
                )  # fmt: skip
                self._by_build.setdefault(build, []).append(node)
        return self._by_build.values()

    def once(self, key: tuple[str, bytes], work: Callable[[], T]) -> T:
        """Return the result of `work`, computed once per key."""
        if key not in self._done:
            self._done[key] = work()
        found: T = self._done[key]
        return found

    def could(self, shape: Shape) -> Iterator[NodeState]:
        """Yield the nodes that could take such a pod if they were empty."""
        alike, rules = _unnamed(shape), rules_of(self._state, shape)
        for nodes in self._builds():
            if devices_feasibility(alike, empty(nodes[0]).devices, rules) is not None:
                continue
            for node in nodes:
                if alike == shape:
                    refused = refused_node(shape, empty(node))
                else:
                    refused = feasibility(shape, node, empty, rules)
                if refused is None:
                    yield node

    def holds(self, shape: Shape, node: NodeState) -> bool:
        """Return True if the node could take such a pod if it were empty."""
        return feasibility(shape, node, empty, rules_of(self._state, shape)) is None

    def empty_devices(self, shape: Shape, node: NodeState) -> tuple[int, int]:
        """Return the exclusive devices that the pod needs on one node, and those free now."""
        wanted, free, rules = 0, set[int](), rules_of(self._state, shape)
        for ask in shape.asks:
            would_do = list(usable(ask, shape.devices, node.devices, rules))
            if not ask.init and any(need.alone for _, need in would_do):
                wanted += ask.count
                free.update(
                    place for place, need in would_do
                    if refused_amount(need, node.devices[place]) is None
                )  # fmt: skip
        return wanted, len(free)

    def miss(
        self, shape: Shape, node: NodeState, occupancy: Occupancy = now
    ) -> tuple[tuple[int, float], NearMiss] | None:
        """Return how near a node that could take the pod is, and what it lacks, or None.

        Nearness is as in the events: the last filter first, then the least shortage."""
        rules = rules_of(self._state, shape)
        verdict = feasibility(shape, node, occupancy, rules, large_enough=True)
        return (verdict.order, _near(node, verdict)) if verdict is not None else None


def host_holds(shape: Shape, node: NodeState) -> bool:
    """Return True if the empty node would be suitable and large enough."""
    return refused_node(shape, empty(node)) is None


def _most_pods(shape: Shape, node: NodeState, rules: Rules) -> int:
    """Return an upper bound for the number of such pods on the empty node, ask by ask."""
    if not host_holds(shape, node):
        return 0
    needs, host = shape.node, node.host
    most = host.pods
    if needs.cpu_milli:
        most = min(most, host.cpu_milli // needs.cpu_milli)
    if needs.memory_mib:
        most = min(most, host.memory_mib // needs.memory_mib)
    for ask in shape.asks:
        if not ask.init:
            shares = 0
            for place, need in usable(ask, shape.devices, node.devices, rules):
                device = node.devices[place].device
                amounts = (
                    (need.memory_mib, device.memory_mib),
                    (need.cores_needed, device.cores),
                    (need.template_cpu, template_cpu_of(device)),
                )
                slots = 1 if need.alone else device.slots
                shares += min([slots, *(there // wanted for wanted, there in amounts if wanted)])
            most = min(most, shares // ask.count)
    return most


def _unnamed(shape: Shape) -> Shape:
    """Return the shape without constraints on particular devices."""
    devices = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
    return structs.replace(shape, devices=devices)


def _near(node: NodeState, verdict: Verdict) -> NearMiss:
    place = verdict.place
    return NearMiss(
        node=node.name, device="" if place == NO_PLACE else node.devices[place].device.id,
        code=verdict.code, needed=verdict.needed, available=verdict.available,
    )  # fmt: skip
