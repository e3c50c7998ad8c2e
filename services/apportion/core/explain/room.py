"""Which nodes could hold a refused pod once what is there has ended, and which never could.

A refusal counts what is free; of two nodes that lack the same, one may be too small for the pod
whatever ends there. Advice must not point at that one. Where all are, the nearest is the one that
lacks the least of what it has in all (`capacity`). Invariant: "never" is said only where every
node is too small or of the wrong kind with nothing on it; `lab.fitting`, which tries an empty fleet
with the engine, says it then as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from apportion.core.devices.demand import Demand, demand
from apportion.core.devices.shares import DeviceState
from apportion.core.explain import words
from apportion.core.explain.capacity import (
    NO_PLACE,
    Deficit,
    devices_deficit,
    empty,
    host_deficit,
    most_pods,
)
from apportion.core.explain.gang_places import beside_own, never_together, of_one_sort
from apportion.core.explain.lifted import on_offer, uncordoned, without
from apportion.core.explain.limited import holders_of, never_within, of_its_card
from apportion.core.ledger.belonging import queue_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.filters import FITS, RANK, Verdict, refused_amount, refused_kind
from apportion.core.placement.filters import refused_node as refused_now
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    NearMiss,
    PodRefused,
    RefusalCode,
    Shape,
)

T = TypeVar("T")
NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could hold a pod of which the nearest are looked for

LISTED_LOOKS: Final = 20_000
"""So many looks at nodes a list may take to find out which of its pods can never fit: on a fleet of
1,000 nodes for 20 sorts of pods, each some ten milliseconds.
"""

Alike = tuple[bytes, int, tuple[tuple[RefusalCode, int], ...], tuple[NearMiss, ...], bool]
"""What pods have in common whose refusals are explained alike."""
Build = tuple[tuple[str, str, str, int, int, int, int], ...]


class Explained(NamedTuple):
    """A refusal whose nearest nodes could hold the pod; `never`: none could, whatever ends.

    `limit` is in words the limit that could never hold it, whoever else ends; no node is at fault.
    `own` counts the nodes that others of its gang would take, which the refusal counts as held.
    `shape` is what was asked for and refused; None where nobody knows, for it is of a gang whose
    pods differ, and may be another one's.
    """

    refused: PodRefused
    never: bool
    limit: str = ""
    own: int = 0
    shape: Shape | None = None

    @property
    def of_limits(self) -> bool:
        """Whether a queue, quota, volume or incomplete gang is what keeps it from all nodes."""
        refused, gang = self.refused, self.refused.gang
        short = gang is not None and gang.present < gang.needed
        return bool(refused.queue or refused.quota or refused.volume or short)


class Room:
    """What the nodes of a state could hold with nothing on them; good for one state as it is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._geometries = state.configuration.nvidia.known_mig_geometries
        self._by_build: dict[Build, list[NodeState]] = {}
        self._known: dict[bytes, tuple[NearMiss, ...] | None] = {}
        self._whole: dict[bytes, PodRefused] = {}
        self._explained: dict[Alike, Explained] = {}
        self._done: dict[tuple[str, bytes], Any] = {}
        self._unbelieved: list[NodeState] | None = None
        self._looks = 0

    def explained(self, pod: PodState, refused: PodRefused, *, brief: bool = False) -> Explained:
        """The refusal with the nearest among the nodes that could hold the pod; where none could,
        with what each lacks when empty.

        Where a volume is what keeps it out, the nodes stay as they are; where a gang is, those that
        the others of it would take are left out; where a queue or quota is, none is near, for what
        a node lacks is not why. `brief`: for a list, which names no node, those of the event that
        could hold it will do; of many sorts of pods, all of them.
        """
        found = self._found(pod, refused, brief=brief)
        known = not refused.gang or of_one_sort(self, self._state, pod)
        return found._replace(shape=pod.submitted.shape if known else None)

    def _found(self, pod: PodState, refused: PodRefused, *, brief: bool) -> Explained:
        if refused.queue or refused.quota:
            limit = self.never_within(pod, refused)
            refused = refused if limit else self._of_its_card(pod, refused)
            return Explained(structs.replace(refused, nearest=()), never=False, limit=limit)
        if refused.gang:
            limit = never_together(self, self._state, pod, refused.gang)
            if limit or brief or self._looks >= LISTED_LOOKS:
                return Explained(refused, never=False, limit=limit)
            self._looks += len(self._state.nodes)
            refused, own = beside_own(self, self._state, pod, refused)
            return Explained(refused, never=False, own=own)
        if refused.volume or not refused.nodes:
            return Explained(refused, never=False)
        reasons = tuple(refused.reasons.items())
        sort = (pod.shape_key, refused.nodes, reasons, refused.nearest, brief)
        if sort not in self._explained:
            if brief and self._looks >= LISTED_LOOKS:
                return Explained(refused, never=False)
            self._looks += len(self._state.nodes)
            self._explained[sort] = self._of_nodes(pod, refused, brief=brief)
        found = self._explained[sort]
        return found._replace(refused=structs.replace(found.refused, pod=refused.pod))

    def _of_nodes(self, pod: PodState, refused: PodRefused, *, brief: bool) -> Explained:
        refused = words.without_gone(refused)
        shape = pod.submitted.shape
        kept = self.possible(pod, refused)
        if brief:
            if kept or next(self.could(shape), None) is not None:
                return Explained(structs.replace(refused, nearest=kept), never=False)
            return self._of_none(pod, refused)
        if kept and len(kept) == len(refused.nearest) and not self._alone(shape, kept):
            return Explained(refused, never=False)
        could = {miss.node for miss in kept}
        if pod.shape_key not in self._known:
            self._known[pod.shape_key] = self.nearest(shape)
        found = self._known[pod.shape_key]
        if found is None:
            return self._of_none(pod, refused)
        more = (miss for miss in found if miss.node not in could)
        nearest = sorted((*kept, *more), key=partial(self._devices_short, shape))
        return Explained(
            structs.replace(refused, nearest=tuple(nearest[:NEAREST_KEPT])), never=False
        )

    def _of_its_card(self, pod: PodState, refused: PodRefused) -> PodRefused:
        """See `limited`; of pods that are alike one looks at all that is held."""
        about = f"card of {self.limit_of(pod, refused)} {refused.gang} {pod.submitted.group}"
        found = self.once(
            (about, pod.shape_key), lambda: of_its_card(self._state, pod, refused).queue
        )
        return structs.replace(refused, queue=found)

    def _of_none(self, pod: PodState, refused: PodRefused) -> Explained:
        """The refusal of a pod that no node could hold; where there is no node, nobody knows."""
        if not any(node.present for node in self._state.nodes.values()):
            return Explained(refused, never=False)
        if pod.shape_key not in self._whole:
            self._whole[pod.shape_key] = self._with_nothing_there(pod.submitted.shape, refused)
        return Explained(self._whole[pod.shape_key], never=True)

    def holders(self, pod: PodState, refused: PodRefused) -> list[PodState]:
        """Who holds what the limit of the refusal counts; see `limited`, and as there once for all
        whom it keeps out.
        """
        key = f"held of {self.limit_of(pod, refused)}"
        return self.once((key, b""), lambda: holders_of(self._state, pod, refused))

    def limit_of(self, pod: PodState, refused: PodRefused) -> str:
        """Which limit keeps the pod out: the same words for all whom it does."""
        if refused.queue is not None:
            return f"queue {queue_of(self._state, pod)} {refused.queue.resource}"
        resource = refused.quota.resource if refused.quota is not None else ""
        return f"quota {pod.submitted.namespace} {resource}"

    def never_within(self, pod: PodState, refused: PodRefused) -> str:
        """See `limited`: it counts all of a gang, so that is done once for all of its pods."""
        submitted = pod.submitted
        group = self._state.groups.get(submitted.group)
        together = group is not None and group.observed is not None and group.together
        sort = b"" if together else pod.shape_key
        whose = f"{submitted.group} {submitted.namespace} {queue_of(self._state, pod)}"
        limits = f"{refused.queue is not None} {refused.quota is not None}"
        return self.once(
            (f"within {whose} {limits}", sort), lambda: never_within(self._state, pod, refused)
        )

    def most(self, shape: Shape) -> int:
        """How many such pods the fleet could hold with nothing there, at most."""
        nodes = self._state.nodes.values()
        return sum(most_pods(shape, node, self._geometries) for node in nodes if node.present)

    def _alone(self, shape: Shape, near: Iterable[NearMiss]) -> bool:
        """Whether the pod wants devices for itself, so that it counts how many are empty."""
        return any(self._devices_short(shape, miss) for miss in near)

    def _devices_short(self, shape: Shape, miss: NearMiss) -> int:
        """How many empty devices the node has too few of for the pod."""
        node = self._state.nodes.get(miss.node)
        wanted, free = self.empty_devices(shape, node) if node is not None else (0, 0)
        return max(wanted - free, 0)

    def unbelieved(self, pod: PodState, refused: PodRefused) -> tuple[str, ...]:
        """The nodes that the pod may use and whose agents are not believed: what devices they have
        is not known, or was known before something was refused of them.
        """
        if refused.gang or refused.queue or refused.quota or refused.volume:
            return ()
        if self._unbelieved is None:
            nodes = self._state.nodes.values()
            self._unbelieved = [each for each in nodes if each.refused and not each.gone]
        shape = pod.submitted.shape
        return tuple(
            node.name for node in self._unbelieved if not node.present or _host_holds(shape, node)
        )

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
        misses.sort(key=lambda each: (self._devices_short(shape, each[1]), each[0]))
        return tuple(miss for _, miss in misses[:NEAREST_KEPT]) if could else None

    def _with_nothing_there(self, shape: Shape, refused: PodRefused) -> PodRefused:
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
                    if _host_holds(shape, node)
                    and (alike == shape or self._devices_hold(shape, node))
                )  # fmt: skip

    def holds(self, shape: Shape, node: NodeState) -> bool:
        """Whether the node could hold such a pod with nothing on it."""
        return _host_holds(shape, node) and self._devices_hold(shape, node)

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


def _host_holds(shape: Shape, node: NodeState) -> bool:
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
         each.cores, each.slots)
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
