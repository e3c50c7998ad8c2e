"""What nodes could hold once what is there has ended, and what each lacks now.

A refusal counts what is free; of two nodes that lack the same, one may be too small for the pod
whatever ends there. Advice must not point at that one. Where all are, the nearest is the one that
lacks the least of what it has in all (`capacity`). Invariant: a node could hold a pod only if it is
large enough and of the right kind with nothing on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import structs

from apportion.core.devices.demand import Demand, demand
from apportion.core.devices.shares import DeviceState
from apportion.core.explain.capacity import (
    NO_PLACE,
    Deficit,
    devices_deficit,
    empty,
    host_deficit,
    most_pods,
)
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.feasibility import FITS, RANK, Verdict, refused_amount, refused_kind
from apportion.core.placement.feasibility import refused_node as refused_now
from apportion.core.placement.feasibility.occupancy import on_offer, uncordoned, without
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    MigSize,
    NearMiss,
    PodRefused,
    RefusalCode,
    Shape,
)

T = TypeVar("T")
NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could hold a pod of which the nearest are looked for

Build = tuple[tuple[str, str, str, int, int, int, int, tuple[MigSize, ...]], ...]


class Room:
    """What the nodes of a state could hold with nothing on them; good for one state as it is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._geometries = state.configuration.nvidia.known_mig_geometries
        self._by_build: dict[Build, list[NodeState]] = {}
        self._done: dict[tuple[str, bytes], Any] = {}

    def most(self, shape: Shape) -> int:
        """How many such pods the fleet could hold with nothing there, at most."""
        nodes = self._state.nodes.values()
        return sum(most_pods(shape, node, self._geometries) for node in nodes if node.present)

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
        deficits = list[tuple[NodeState, Deficit]]()
        for nodes in self._builds():
            of_build = devices_deficit(shape, nodes[0], self._geometries)
            for node in nodes:
                deficit = host_deficit(shape, node) or (
                    of_build if alike == shape else devices_deficit(shape, node, self._geometries)
                )
                if deficit is not None and node.present:
                    reasons[deficit.verdict.code] += 1
                    deficits.append((node, deficit))
        near = nsmallest(NEAREST_KEPT, deficits, key=lambda each: (each[1].order, each[0].name))
        return structs.replace(
            refused,
            nodes=len(deficits),
            reasons=dict(reasons),
            nearest=tuple(
                _near(node, _at(node, deficit), deficit.verdict) for node, deficit in near
            ),
        )

    def lacks_only(self, shape: Shape, node: NodeState, pods: Iterable[PodState]) -> bool:
        """Whether the node lacks something for such a pod, and nothing once these have ended."""
        if self.miss(shape, node) is None:
            return False
        return self.miss(shape, without(node, pods)) is None

    def fits_on_offer(self, shape: Shape, node: NodeState) -> bool:
        """Whether the node would take such a pod as full as it is, once cordons were lifted and its
        devices well.
        """
        return self.holds(shape, node) and self.miss(shape, on_offer(node)) is None

    def fits_uncordoned(
        self, shape: Shape, node: NodeState, code: RefusalCode, device: str = ""
    ) -> bool:
        """Whether the node would take such a pod as it is, once that one cordon was lifted."""
        return self.miss(shape, uncordoned(node, code, device)) is None

    def would_do(self, shape: Shape, node: NodeState) -> set[str]:
        """The devices of the node of which some ask could be met with nothing on them."""
        asks = (self._would_do(ask, shape.devices, node) for ask in shape.asks)
        return {held.device.id for found in asks for _, held in found}

    def _builds(self) -> Iterable[list[NodeState]]:
        """The nodes, those together whose devices are alike."""
        if not self._by_build:
            for node in self._state.nodes.values():
                self._by_build.setdefault(_build(node), []).append(node)
        return self._by_build.values()

    def once(self, key: tuple[str, bytes], work: Callable[[], T]) -> T:
        """What `work` comes to, which is done once for a key: whoever explains many pods asks alike
        of those that want the same.
        """
        if key not in self._done:
            self._done[key] = work()
        found: T = self._done[key]
        return found

    def could(self, shape: Shape) -> Iterator[NodeState]:
        """The nodes that could hold such a pod with nothing on them."""
        alike = _unnamed(shape)
        for nodes in self._builds():
            if self._devices_hold(alike, nodes[0]):
                yield from (
                    node for node in nodes
                    if host_holds(shape, node)
                    and (alike == shape or self._devices_hold(shape, node))
                )  # fmt: skip

    def holds(self, shape: Shape, node: NodeState) -> bool:
        """Whether the node could hold such a pod with nothing on it."""
        return host_holds(shape, node) and self._devices_hold(shape, node)

    def _devices_hold(self, shape: Shape, node: NodeState) -> bool:
        """Whether each ask by itself has enough devices there that would do when empty."""
        return all(
            sum(1 for _ in self._would_do(ask, shape.devices, node)) >= ask.count
            for ask in shape.asks
        )

    def _would_do(
        self, ask: Ask, wanted: DeviceConstraints, node: NodeState
    ) -> Iterator[tuple[Demand, DeviceState]]:
        """The devices that could meet the ask with nothing on them, with what it comes to there."""
        for held in node.devices:
            if refused_kind(ask, wanted, held.device) is not None:
                continue
            needs = demand(ask, held.device, self._geometries)
            if isinstance(needs, Demand) and refused_amount(needs, empty(held.device)) is None:
                yield needs, held

    def empty_devices(self, shape: Shape, node: NodeState) -> tuple[int, int]:
        """How many devices the pod wants alone on one node, and how many would do there now."""
        wanted, free = 0, set[str]()
        for ask in shape.asks:
            would_do = list(self._would_do(ask, shape.devices, node))
            if not ask.init and any(needs.alone for needs, _ in would_do):
                wanted += ask.count
                free.update(
                    held.device.id for needs, held in would_do
                    if refused_amount(needs, held) is None
                )  # fmt: skip
        return wanted, len(free)

    def miss(self, shape: Shape, node: NodeState) -> tuple[tuple[int, float], NearMiss] | None:
        """What a node lacks that could hold the pod, with how near that is, measured as in the
        events: the last filter first, then the least shortage.

        None where nothing that a node or a device has free keeps the pod out.
        """
        verdict = refused_now(shape, node)
        if verdict is not None:
            return (-_rank(verdict), _shortage(verdict)), _near(node, "", verdict)
        for ask in shape.asks:
            found = [
                (refused_amount(needs, held), held.device.id)
                for needs, held in self._would_do(ask, shape.devices, node)
            ]
            lacking = [(verdict, device) for verdict, device in found if verdict is not None]
            short = ask.count - (len(found) - len(lacking))
            if short <= 0:
                continue
            lacking.sort(key=lambda each: (-_rank(each[0]), _shortage(each[0]), each[1]))
            verdict, device = lacking[short - 1]
            same = (each for each in lacking if each[0].code is verdict.code)
            verdict, device = next(same)
            return (-_rank(verdict), _shortage(verdict)), _near(node, device, verdict)
        return None


def host_holds(shape: Shape, node: NodeState) -> bool:
    """Whether the node is there, may take such pods and is large enough, whatever runs on it."""
    return host_deficit(shape, node) is None


def _unnamed(shape: Shape) -> Shape:
    """The shape without wishes for this device or that one."""
    devices = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
    return structs.replace(shape, devices=devices)


def _at(node: NodeState, deficit: Deficit) -> str:
    return "" if deficit.place == NO_PLACE else node.devices[deficit.place].device.id


def _build(node: NodeState) -> Build:
    """What the devices of a node are, which is all that an ask without names depends on."""
    devices = (held.device for held in node.devices)
    return tuple(
        (each.family, each.model, each.mode, each.memory_mib, each.physical_memory_mib,
         each.cores, each.slots, each.mig_sizes)
        for each in devices
    )  # fmt: skip


def _rank(verdict: Verdict) -> int:
    return RANK.get(verdict.code, FITS)


def _shortage(verdict: Verdict) -> float:
    return (verdict.needed - verdict.available) / max(verdict.needed, 1)


def _near(node: NodeState, device: str, verdict: Verdict) -> NearMiss:
    return NearMiss(
        node=node.name, device=device, code=verdict.code,
        needed=verdict.needed, available=verdict.available,
    )  # fmt: skip
