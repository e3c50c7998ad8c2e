"""Check whether a pod fits a node: the filters in order, and the evaluator that applies them.

A filter returns the needed and the available amount, and the node passes if there is enough. An
`Occupancy` is a function that returns the node to check: unchanged, empty, or without some pods or
a cordon. Invariant: a node fits here exactly if no filter of the index refuses it; a property test
compares the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from enum import Enum, auto
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from apportion.core.devices.chains import chain
from apportion.core.devices.demand import (
    NO_FACTS,
    Demand,
    FleetFacts,
    demand,
    largest_gpu_mib,
    largest_part,
)
from apportion.core.devices.sets import in_sets, whole_sets
from apportion.core.devices.shares import DeviceState, release, template_cpu_of
from apportion.core.ledger.host_usage import release_host
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.feasibility.amounts import AMOUNTS
from apportion.core.placement.feasibility.causes import CAUSES, OF_NEIGHBOURS, OF_NO_NODE, OF_PARTS
from apportion.core.placement.feasibility.devices import DEVICE_RULES, RULES
from apportion.core.placement.feasibility.nodes import FACT_FILTERS, NODE_FILTERS
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    MigSize,
    NearMiss,
    NodeObserved,
    PodRefused,
    RefusalCode,
    Shape,
)

T = TypeVar("T")
NO_PLACE: Final = -1


class Verdict(NamedTuple):
    """The rule that keeps a pod from a node, with the needed and the available amount."""

    code: RefusalCode
    needed: int
    available: int
    place: int = NO_PLACE  # index of the device

    @property
    def order(self) -> tuple[int, float]:
        """Return a sort key, nearest to fitting first: latest filter, then least shortage."""
        return -RANK.get(self.code, FITS), (self.needed - self.available) / max(self.needed, 1)


NEIGHBOURS: Final = tuple(cause.code for cause in OF_NEIGHBOURS)
UNCUT: Final = tuple(cause.code for cause in OF_PARTS)
ORDER: Final[tuple[RefusalCode, ...]] = tuple(CAUSES)[: -len(OF_NO_NODE)]
RANK: Final = {code: rank for rank, code in enumerate(ORDER)}
FITS: Final = len(ORDER)  # the rank when no filter refuses; above every refusal's


def first_lacking(
    checks: Iterable[tuple[RefusalCode, Callable[[Any, Any], tuple[int, int]]]],
    wanted: object,
    there: object,
) -> Verdict | None:
    """Return the first check whose available amount is less than the needed one, or None."""
    for code, check in checks:
        needed, available = check(wanted, there)
        if available < needed:
            return Verdict(code, needed, available)
    return None


def refused_node(shape: Shape, node: NodeState) -> Verdict | None:
    """Return the first node filter that the node does not pass, or None."""
    return first_lacking(NODE_FILTERS, shape, node)


def facts_refusal(shape: Shape, node: NodeState) -> RefusalCode | None:
    """Return the code of the first filter of cluster facts that refuses the node, or None."""
    found = first_lacking(FACT_FILTERS, shape, node)
    return None if found is None else found.code


def refused_kind(ask: Ask, constraints: DeviceConstraints, device: Device) -> RefusalCode | None:
    """Return the first device rule that refuses the device, whatever is in use, or None."""
    for code, passes in DEVICE_RULES:
        if not passes(ask, constraints, device):
            return code
    return None


def refused_amount(demand: Demand, state: DeviceState) -> Verdict | None:
    """Return the first amount that the device has too little of, or None."""
    return first_lacking(AMOUNTS, demand, state)


Occupancy = Callable[[NodeState], NodeState]
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
# taints that Kubernetes adds for a condition or a cordon, and removes when it ends
CONDITIONS: Final = frozenset((
    UNSCHEDULABLE, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure", "node.kubernetes.io/network-unavailable",
))  # fmt: skip


def now(node: NodeState) -> NodeState:
    """Return the node unchanged, with all pods that are placed there."""
    return node


def empty(node: NodeState) -> NodeState:
    """Return the node as it would be without pods or cordons, ready, and with a reporting agent."""
    devices = [empty_device(held.device) for held in node.devices]
    observed = node.observed and mended(node.observed)
    return structs.replace(
        node,
        devices=devices,
        host=structs.replace(node.host, labels=observed.labels) if observed else node.host,
        by_id={held.device.id: held for held in devices},
        pods={},
        observed=observed,
        cordon="",
        cordons=(),
        cpu_used_milli=0,
        memory_used_mib=0,
        extended_used={},
        registered=None,
        silent="",
    )


def empty_device(device: Device) -> DeviceState:
    """Return the device's state with nothing allocated and no slices closed."""
    return DeviceState(
        device=structs.replace(device, closed_slices=0) if device.closed_slices else device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
    )


def mended(observed: NodeObserved) -> NodeObserved:
    """Return the node's facts as if the node were ready and ran no pods of other schedulers."""
    return structs.replace(
        observed,
        ready=True,
        unschedulable=False,
        taints=tuple(each for each in observed.taints if each.key not in CONDITIONS),
        unhealthy_indexes=(),
        unnamed_families=(),
        others=(),
    )


def without(pods: Iterable[PodState]) -> Occupancy:
    """Return a function that gives a node's state as if these pods had ended."""
    ended = tuple(pods)

    def occupancy(node: NodeState) -> NodeState:
        devices = [copy(held) for held in node.devices]
        by_id = {held.device.id: copy(held) for held in node.by_id.values()}
        by_id |= {held.device.id: held for held in devices}
        left = structs.replace(
            node, devices=devices, by_id=by_id,
            pods=dict(node.pods), extended_used=dict(node.extended_used),
        )  # fmt: skip
        for pod in ended:
            for share in pod.placement.shares if pod.placement is not None else ():
                release(by_id[share.device], share)
            release_host(copy(pod), left)
        return left

    return occupancy


def uncordoned(code: RefusalCode, device: str = "") -> Occupancy:
    """Return a function that gives a node's state as if the cordon of this refusal were removed."""

    def occupancy(node: NodeState) -> NodeState:
        if code is RefusalCode.DEVICE_CORDONED:
            devices = [copy(held) for held in node.devices]
            for held in devices:
                if held.device.id == device:
                    held.cordon, held.cordons = "", ()
            return structs.replace(node, devices=devices)
        if code is RefusalCode.NODE_CORDONED:
            return structs.replace(node, cordon="", cordons=())
        return structs.replace(node, observed=node.observed and _schedulable(node.observed))

    return occupancy


def on_offer(node: NodeState) -> NodeState:
    """Return a copy of the node without cordons and with all reported devices healthy."""
    devices = [copy(held) for held in node.devices]
    for held in devices:
        held.healthy, held.cordon, held.cordons = True, "", ()
    observed = node.observed and _schedulable(node.observed)
    return structs.replace(node, devices=devices, cordon="", cordons=(), observed=observed)


def _schedulable(observed: NodeObserved) -> NodeObserved:
    taints = tuple(each for each in observed.taints if each.key != UNSCHEDULABLE)
    return structs.replace(observed, unschedulable=False, taints=taints)


# an ask's demand on a device, or the rule that this device can never pass
Need = Demand | RefusalCode
_WHICH_DEVICE: Final = frozenset((RefusalCode.UUID_MISMATCH, RefusalCode.INDEX_MISMATCH))
# rules about what a device is, or which one; they have no amounts
_OF_KINDS: Final = frozenset(rule.code for rule in RULES)
_NO_DEVICE: Final = RefusalCode.NO_SUCH_DEVICE


class Rules(NamedTuple):
    """The cluster settings that filters read."""

    fleet: FleetFacts = NO_FACTS
    idle_only: bool = False  # only idle devices count


PLAIN: Final = Rules()


def feasibility(
    shape: Shape,
    node: NodeState,
    occupancy: Occupancy = now,
    rules: Rules = PLAIN,
    *,
    large_enough: bool = False,
) -> Verdict | None:
    """Return the first rule that keeps a pod of this shape from the node, or None if it fits.

    With `large_enough`, ignore devices that are too small even when empty."""
    left = occupancy(node)
    refused = refused_node(shape, left)
    return refused or devices_feasibility(shape, left.devices, rules, large_enough=large_enough)


def devices_feasibility(
    shape: Shape,
    devices: Sequence[DeviceState],
    rules: Rules = PLAIN,
    *,
    large_enough: bool = False,
) -> Verdict | None:
    """Apply `feasibility` to these devices only."""
    for ask in shape.asks:
        needs = [need_of(ask, shape.devices, held.device, rules) for held in devices]
        places: Sequence[int] = range(len(devices))
        if large_enough:
            places = [at for at, _ in usable(ask, shape.devices, devices, rules)]
        refused = refused_ask(ask, devices, needs, rules.fleet, places)
        if refused is not None:
            return refused
        alone = len(shape.asks) == 1 and not shape.devices.numa_bind
        if alone and ask.count > 1 and in_sets(ask.family):
            free = [
                held.device
                for need, held in zip(needs, devices, strict=True)
                if isinstance(need, Demand) and refused_amount(need, held) is None
            ]
            if next(whole_sets(free, ask.count), None) is None:
                return Verdict(RefusalCode.MODULES_IN_USE, ask.count, ask.count - 1)
    return None


def need_of(ask: Ask, constraints: DeviceConstraints, device: Device, rules: Rules) -> Need:
    """Return what the ask needs of such a device, or the code of the rule that excludes it."""
    refused = refused_kind(ask, constraints, device)
    if refused is not None and refused not in _WHICH_DEVICE:
        return refused
    found = demand(ask, device, rules.fleet)
    if not isinstance(found, Demand):
        return found if refused is None or RANK[found] < RANK[refused] else refused
    if refused is not None:
        return refused
    return found._replace(alone=True) if rules.idle_only else found


def usable(
    ask: Ask, constraints: DeviceConstraints, devices: Sequence[DeviceState], rules: Rules
) -> Iterator[tuple[int, Demand]]:
    """For each device that could meet the ask if empty, yield its position and the ask's demand."""
    for at, held in enumerate(devices):
        need = need_of(ask, constraints, held.device, rules)
        if isinstance(need, Demand) and refused_amount(need, empty_device(held.device)) is None:
            yield at, need


def refused_ask(
    ask: Ask,
    devices: Sequence[DeviceState],
    needs: Sequence[Need],
    fleet: FleetFacts,
    places: Sequence[int],
) -> Verdict | None:
    """Return why too few of the devices in `places` can serve the ask; None if enough can."""
    lacking: list[tuple[int, float, str, int, Verdict]] = []
    would_do = 0
    for at in places:
        need, held = needs[at], devices[at]
        if isinstance(need, Demand):
            would_do += 1
            refused = refused_amount(need, held)
            if refused is None:
                continue
        else:
            amounts = largest_part(ask, held.device, fleet) if need in UNCUT else (1, 0)
            refused = Verdict(need, *amounts)
        needed = refused.needed
        short = (needed - refused.available) / (needed or 1)
        lacking.append((-RANK[refused.code], short, held.device.id, at, refused))
    missing = ask.count - (len(places) - len(lacking))
    if missing <= 0:
        return None
    lacking.sort()
    code = lacking[missing - 1][4].code if missing <= len(lacking) else _NO_DEVICE
    if code is _NO_DEVICE:  # the first device rule, so any other refused device came further
        if missing < ask.count or (lacking and lacking[0][4].code is not code):
            code = RefusalCode.DEVICES_TOO_FEW
    elif code not in _OF_KINDS:
        _, _, _, at, refused = next(row for row in lacking if row[4].code is code)
        return refused._replace(place=at)
    # Rules about what a device is have no amount, so the verdict counts usable devices.
    return Verdict(code, ask.count, min(would_do, ask.count - 1))


NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could run a pod, among which the nearest are sought

Build = tuple[tuple[str, str, str, int, int, int, int, tuple[MigSize, ...]], ...]


class Lifting(Enum):
    """Whether a pod fits once a cordon is removed, or what else keeps it from fitting."""

    SUFFICES = auto()
    WITH_OTHERS = auto()  # other cordons or failures must end too
    THEN_WAIT = auto()  # pods there must end too


class Room:
    """Finds the nodes that could run a pod when empty; caches results for one unchanged state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_build: dict[Build, list[NodeState]] = {}
        self._done: dict[tuple[str, bytes], Any] = {}
        self._unbelieved: list[NodeState] | None = None

    def once(self, key: tuple[str, bytes], work: Callable[[], T]) -> T:
        """Return the result of `work`, which is called only once per key."""
        if key not in self._done:
            self._done[key] = work()
        found: T = self._done[key]
        return found

    def rules(self, shape: Shape) -> Rules:
        """Return the rules for pods of this shape in this cluster."""
        state = self._state
        devices = chain(shape.device_policy or state.policy.device_policy)
        largest = 0
        if any(ask.cap_memory for ask in shape.asks):
            largest = self.once(("largest GPU", b""), self._largest_gpu_mib)
        fleet = FleetFacts(state.configuration.nvidia.known_mig_geometries, largest)
        return Rules(fleet, devices.idle_only)

    def _largest_gpu_mib(self) -> int:
        nodes = self._state.nodes.values()
        return largest_gpu_mib(held.device for node in nodes for held in node.devices)

    def in_context(
        self, pod: PodState, refused: PodRefused, *, brief: bool = False
    ) -> tuple[PodRefused, bool]:
        """Return the refusal with the nearest nodes that could run the pod when empty, and False.

        If no node could, return what each node lacks even when empty, and True. `brief` prefers the
        nodes that `refused` names."""
        shape = pod.submitted.shape
        kept = self.possible(pod, refused)
        if brief and kept:
            return structs.replace(refused, nearest=kept), False
        # For exclusive devices, count the empty ones.
        short = (self.devices_short(shape, miss) for miss in kept)
        if kept and len(kept) == len(refused.nearest) and not any(short):
            return refused, False
        could = {miss.node for miss in kept}
        found = self.once(("nearest", pod.shape_key), lambda: self.nearest_nodes(shape))
        if found is None:
            if not any(node.present for node in self._state.nodes.values()):
                return refused, False  # without any node nothing is known
            key = "with nothing there", pod.shape_key
            return self.once(key, lambda: self.with_nothing_there(shape, refused)), True
        more = (miss for miss in found if miss.node not in could)
        nearest = sorted((*kept, *more), key=partial(self.devices_short, shape))
        return structs.replace(refused, nearest=tuple(nearest[:NEAREST_KEPT])), False

    def unbelieved(self, pod: PodState, refused: PodRefused) -> tuple[str, ...]:
        """Return the nodes that might fit, but whose agents' reports the ledger refused."""
        if refused.gang or refused.queue or refused.quota or refused.volume:
            return ()
        if self._unbelieved is None:
            nodes = self._state.nodes.values()
            self._unbelieved = [each for each in nodes if each.refused and not each.gone]
        shape = pod.submitted.shape
        return tuple(
            node.name for node in self._unbelieved if not node.present or host_holds(shape, node)
        )

    def could_count(self, pod: PodState) -> int:
        """Return how many nodes could run the pod when empty."""
        shape = pod.submitted.shape
        return self.once(("could", pod.shape_key), lambda: sum(1 for _ in self.could(shape)))

    def recovers(self, pod: PodState) -> bool:
        """Return True if the pod would fit on some node once its failed devices recover."""
        shape, nodes = pod.submitted.shape, self._state.nodes.values()
        failed = (node for node in nodes if any(not held.healthy for held in node.devices))
        return self.once(
            ("recovered", pod.shape_key),
            lambda: any(self.fits_on_offer(shape, node) for node in islice(failed, NODES_WEIGHED)),
        )

    def liftable(self, pod: PodState, code: RefusalCode) -> tuple[list[str], Lifting]:
        """Return the cordoned nodes or devices that could run the pod, and what else is needed."""
        key = f"liftable {code.value}", pod.shape_key
        return self.once(key, lambda: self._liftable(pod.submitted.shape, code))

    def _liftable(self, shape: Shape, code: RefusalCode) -> tuple[list[str], Lifting]:
        holds = (each for each in self.cordoned(code) if self.holds(shape, each[1]))
        could = list(islice(holds, NODES_WEIGHED))
        alone = [name for name, node in could if self.fits_uncordoned(shape, node, code, name)]
        if alone:
            return alone, Lifting.SUFFICES
        well = [name for name, node in could if self.fits_on_offer(shape, node)]
        if well:
            return well, Lifting.WITH_OTHERS
        return [name for name, _ in could], Lifting.THEN_WAIT

    def cordoned(self, code: RefusalCode) -> Iterator[tuple[str, NodeState]]:
        """Yield each node or device whose cordon gives this refusal code, and its node."""
        state = self._state
        if code is RefusalCode.DEVICE_CORDONED:
            there = (device for device in state.device_cordons if device in state.node_of_device)
            yield from ((device, state.nodes[state.node_of_device[device]]) for device in there)
            return
        for name, node in state.nodes.items():
            kubernetes = code is RefusalCode.NODE_UNSCHEDULABLE and node.drained
            if kubernetes or (code is RefusalCode.NODE_CORDONED and node.cordons):
                yield name, node

    def most(self, shape: Shape) -> int:
        """Return an upper bound of how many pods of this shape an empty fleet could run."""
        rules = self.rules(shape)
        return sum(_most_pods(shape, node, rules) for node in self._state.nodes.values())

    def devices_short(self, shape: Shape, miss: NearMiss) -> int:
        """Return how many more empty devices the node of `miss` would need to run the pod."""
        node = self._state.nodes.get(miss.node)
        wanted, free = self.empty_devices(shape, node) if node is not None else (0, 0)
        return max(wanted - free, 0)

    def possible(self, pod: PodState, refused: PodRefused) -> tuple[NearMiss, ...]:
        """Return those of the refusal's nearest nodes that could run the pod when empty."""
        shape, nodes = pod.submitted.shape, self._state.nodes
        there = (miss for miss in refused.nearest if miss.node in nodes)
        return tuple(miss for miss in there if self.holds(shape, nodes[miss.node]))

    def nearest_nodes(self, shape: Shape) -> tuple[NearMiss, ...] | None:
        """Return what the nodes nearest to fitting lack; None if no node could ever run the pod."""
        could = list(islice(self.could(shape), NODES_WEIGHED))
        misses = [found for node in could if (found := self.miss(shape, node)) is not None]
        misses.sort(key=lambda each: (self.devices_short(shape, each[1]), each[0]))
        return tuple(miss for _, miss in misses[:NEAREST_KEPT]) if could else None

    def with_nothing_there(self, shape: Shape, refused: PodRefused) -> PodRefused:
        """Return the refusal that the pod would get if all nodes were empty."""
        alike, reasons = _unnamed(shape), Counter[RefusalCode]()
        rules, verdicts = self.rules(shape), list[tuple[NodeState, Verdict]]()
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
        """Return True if the pod does not fit on the node now, but would once `pods` end."""
        if self.miss(shape, node) is None:
            return False
        return self.miss(shape, node, without(pods)) is None

    def fits_on_offer(self, shape: Shape, node: NodeState) -> bool:
        """Return True if the pod would fit now if all cordons and device failures ended."""
        return self.holds(shape, node) and self.miss(shape, node, on_offer) is None

    def fits_uncordoned(
        self, shape: Shape, node: NodeState, code: RefusalCode, device: str = ""
    ) -> bool:
        """Return True if the pod would fit now if this one cordon were removed."""
        return self.miss(shape, node, uncordoned(code, device)) is None

    def would_do(self, shape: Shape, node: NodeState) -> set[str]:
        """Return the devices on the node that, if empty, could meet one of the pod's asks."""
        rules = self.rules(shape)
        found = (usable(ask, shape.devices, node.devices, rules) for ask in shape.asks)
        return {node.devices[place].device.id for each in found for place, _ in each}

    def _builds(self) -> Iterable[list[NodeState]]:
        if not self._by_build:
            for node in self._state.nodes.values():
                build = tuple(
                    (each.family, each.model, each.mode, each.memory_mib, each.physical_memory_mib,
                     each.cores, each.slots, each.mig_sizes)
                    for each in (held.device for held in node.devices)
                )  # fmt: skip
                self._by_build.setdefault(build, []).append(node)
        return self._by_build.values()

    def could(self, shape: Shape) -> Iterator[NodeState]:
        """Yield the nodes that could run a pod of this shape when empty."""
        alike, rules = _unnamed(shape), self.rules(shape)
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
        """Return True if the node could run a pod of this shape when empty."""
        return feasibility(shape, node, empty, self.rules(shape)) is None

    def empty_devices(self, shape: Shape, node: NodeState) -> tuple[int, int]:
        """Return how many exclusive devices the pod needs on the node, and how many are free."""
        wanted, free, rules = 0, set[int](), self.rules(shape)
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
        """Return what the node lacks, and a sort key; None if the pod fits or never could."""
        rules = self.rules(shape)
        verdict = feasibility(shape, node, occupancy, rules, large_enough=True)
        return (verdict.order, _near(node, verdict)) if verdict is not None else None


def host_holds(shape: Shape, node: NodeState) -> bool:
    """Return True if the empty node passes every filter that is not about devices."""
    return refused_node(shape, empty(node)) is None


def _most_pods(shape: Shape, node: NodeState, rules: Rules) -> int:
    """Return an upper bound of how many pods of this shape the empty node could run."""
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
                fitting = (there // wanted for wanted, there in amounts if wanted)
                shares += min(slots, min(fitting, default=slots))
            most = min(most, shares // ask.count)
    return most


def _unnamed(shape: Shape) -> Shape:
    devices = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
    return structs.replace(shape, devices=devices)


def _near(node: NodeState, verdict: Verdict) -> NearMiss:
    place = verdict.place
    return NearMiss(
        node=node.name, device="" if place == NO_PLACE else node.devices[place].device.id,
        code=verdict.code, needed=verdict.needed, available=verdict.available,
    )  # fmt: skip
