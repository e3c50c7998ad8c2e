"""What nodes could hold once what is there has ended, and what each lacks now.

A refusal counts what is free; of two nodes that lack the same, one may be too small for the pod
whatever ends there. Advice must not point at that one. Where all are, the nearest is the one that
lacks the least of what it has in all. Invariant: a node could hold a pod only if it fits there with
nothing on it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import structs

from apportion.core.devices.demand import Demand
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
from apportion_schemas import Device, MigSize, NearMiss, PodRefused, RefusalCode, Shape

T = TypeVar("T")
NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could hold a pod of which the nearest are looked for

Build = tuple[tuple[str, str, str, int, int, int, int, tuple[MigSize, ...]], ...]


class Room:
    """What the nodes of a state could hold with nothing on them; good for one state as it is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_build: dict[Build, list[NodeState]] = {}
        self._done: dict[tuple[str, bytes], Any] = {}

    def most(self, shape: Shape) -> int:
        """How many such pods the fleet could hold with nothing there, at most."""
        rules = rules_of(self._state, shape)
        return sum(_most_pods(shape, node, rules) for node in self._state.nodes.values())

    def devices_short(self, shape: Shape, miss: NearMiss) -> int:
        """How many empty devices the node has too few of for the pod."""
        node = self._state.nodes.get(miss.node)
        wanted, free = self.empty_devices(shape, node) if node is not None else (0, 0)
        return max(wanted - free, 0)

    def possible(self, pod: PodState, refused: PodRefused) -> tuple[NearMiss, ...]:
        """The nearest nodes of the event that could hold the pod; it looks at these alone."""
        shape = pod.submitted.shape
        near = {miss.node: self._state.nodes.get(miss.node) for miss in refused.nearest}
        could = {
            name for name, node in near.items() if node is not None and self.holds(shape, node)
        }
        return tuple(miss for miss in refused.nearest if miss.node in could)

    def nearest(self, shape: Shape) -> tuple[NearMiss, ...] | None:
        """What the nearest that could hold the pod lack now; None where no node could."""
        could = list(islice(self.could(shape), NODES_WEIGHED))
        misses = [found for node in could if (found := self.miss(shape, node)) is not None]
        misses.sort(key=lambda each: (self.devices_short(shape, each[1]), each[0]))
        return tuple(miss for _, miss in misses[:NEAREST_KEPT]) if could else None

    def with_nothing_there(self, shape: Shape, refused: PodRefused) -> PodRefused:
        """The refusal of a pod that no node could hold, as it would be if nothing ran there."""
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
        """Whether the node lacks something for such a pod, and nothing once these have ended."""
        if self.miss(shape, node) is None:
            return False
        return self.miss(shape, node, without(pods)) is None

    def fits_on_offer(self, shape: Shape, node: NodeState) -> bool:
        """Whether the node would take such a pod as full as it is, once cordons were lifted and its
        devices well."""
        return self.holds(shape, node) and self.miss(shape, node, on_offer) is None

    def fits_uncordoned(
        self, shape: Shape, node: NodeState, code: RefusalCode, device: str = ""
    ) -> bool:
        """Whether the node would take such a pod as it is, once that one cordon was lifted."""
        return self.miss(shape, node, uncordoned(code, device)) is None

    def would_do(self, shape: Shape, node: NodeState) -> set[str]:
        """The devices of the node of which some ask could be met with nothing on them."""
        rules = rules_of(self._state, shape)
        found = (usable(ask, shape.devices, node.devices, rules) for ask in shape.asks)
        return {node.devices[place].device.id for each in found for place, _ in each}

    def _builds(self) -> Iterable[list[NodeState]]:
        """The nodes, those together whose devices are alike."""
        if not self._by_build:
            for node in self._state.nodes.values():
                self._by_build.setdefault(_build(node), []).append(node)
        return self._by_build.values()

    def once(self, key: tuple[str, bytes], work: Callable[[], T]) -> T:
        """What `work` comes to, which is done once for a key: whoever explains many pods asks alike
        of those that want the same."""
        if key not in self._done:
            self._done[key] = work()
        found: T = self._done[key]
        return found

    def could(self, shape: Shape) -> Iterator[NodeState]:
        """The nodes that could hold such a pod with nothing on them."""
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
        """Whether the node could hold such a pod with nothing on it."""
        return feasibility(shape, node, empty, rules_of(self._state, shape)) is None

    def empty_devices(self, shape: Shape, node: NodeState) -> tuple[int, int]:
        """How many devices the pod wants alone on one node, and how many would do there now."""
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
        """What a node lacks that could hold the pod, with how near that is, measured as in the
        events: the last filter first, then the least shortage.

        None where nothing that a node or a device has free keeps the pod out."""
        rules = rules_of(self._state, shape)
        verdict = feasibility(shape, node, occupancy, rules, large_enough=True)
        return (verdict.order, _near(node, verdict)) if verdict is not None else None


def host_holds(shape: Shape, node: NodeState) -> bool:
    """Whether the node is there, may take such pods and is large enough, whatever runs on it."""
    return refused_node(shape, empty(node)) is None


def _most_pods(shape: Shape, node: NodeState, rules: Rules) -> int:
    """No more such pods than this the node could hold with nothing on it; it may be fewer, for each
    ask is looked at by itself."""
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
            could = usable(ask, shape.devices, node.devices, rules)
            shares = sum(_most_shares(need, node.devices[place].device) for place, need in could)
            most = min(most, shares // ask.count)
    return most


def _most_shares(need: Demand, device: Device) -> int:
    amounts = (
        (need.memory_mib, device.memory_mib),
        (need.cores_needed, device.cores),
        (need.template_cpu, template_cpu_of(device)),
    )
    slots = 1 if need.alone else device.slots
    return min([slots, *(there // wanted for wanted, there in amounts if wanted)])


def _unnamed(shape: Shape) -> Shape:
    """The shape without wishes for this device or that one."""
    devices = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
    return structs.replace(shape, devices=devices)


def _build(node: NodeState) -> Build:
    """What the devices of a node are, which is all that an ask without names depends on."""
    devices = (held.device for held in node.devices)
    return tuple(
        (each.family, each.model, each.mode, each.memory_mib, each.physical_memory_mib,
         each.cores, each.slots, each.mig_sizes)
        for each in devices
    )  # fmt: skip


def _near(node: NodeState, verdict: Verdict) -> NearMiss:
    place = verdict.place
    return NearMiss(
        node=node.name, device="" if place == NO_PLACE else node.devices[place].device.id,
        code=verdict.code, needed=verdict.needed, available=verdict.available,
    )  # fmt: skip
