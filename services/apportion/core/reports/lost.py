"""Find out why devices did no work: attribute each unallocated fraction of a device to one cause.

The facts of the state decide, in this order:

1. The device is unhealthy, or its node is not ready: `UNHEALTHY`.
2. The device or its node is cordoned: `DRAINING` while pods use it, then `CORDONED`.
3. Pending pods that accept devices of its kind request it: `DELAYED`, `QUOTA`, `GANG`, `TOPOLOGY`
   or `FRAGMENTED`, in this order. Each cause takes at most what its pods request. Undecided pods
   come first, because they might fit. For pods that request whole devices, the free rest of a
   device in use is always `FRAGMENTED`.
4. Otherwise, no pod requests it: `FREE`.

Allocated shares are `GANG` while the pod is held for the rest of its gang, `DELAYED` until the pod
is bound, and then `ALLOCATED`.

The causes of 3 are attributed by sums per kind of device. So the cost of an event grows with the
number of kinds, not with the size of the fleet. Invariants: all parts add up to the capacity, and
the result depends only on the events and the period, not on the snapshot that was read first."""

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec import Struct, structs

import apportion_schemas as schemas
from apportion.core.bounded import remember
from apportion.core.devices.demand import Demand, FleetFacts, largest_gpu_mib
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.handlers.gangs import is_held
from apportion.core.ledger.state import PENDING, PLACED, NodeState, PodState, State
from apportion.core.placement.feasibility.causes import LASTING, LIMIT_CODES
from apportion.core.placement.feasibility.evaluator import Rules, need_of
from apportion.core.reports.accounts import Account, Rest, card_part
from apportion.core.reports.meters import CARD, Division, Meters, Part
from apportion.core.reports.rows import NO_POD, By
from apportion.core.reports.used import IDLE
from apportion_schemas import DeviceConstraints, PodRefused, RefusalCode, Shape

_C = RefusalCode
# Pods that wait for a claim or a gate could not run on any device, so they request none.
NOT_READY: Final = frozenset((_C.VOLUME_CLAIM_NOT_READY, _C.VOLUME_CLAIM_IN_USE))
TOPOLOGY: Final = frozenset((
    _C.POD_AFFINITY_MISMATCH, _C.POD_ANTI_AFFINITY, _C.TOPOLOGY_SPREAD_EXCEEDED,
    _C.GANG_DOMAIN_TOO_SMALL, _C.NUMA_MISMATCH, _C.MODULES_IN_USE, _C.VOLUME_NODE_MISMATCH,
))  # fmt: skip
# Nodes that the pod may not use, or that are no capacity, or have a cause of their own.
CLOSED: Final = LASTING | {
    _C.NODE_GONE, _C.NODE_NOT_READY, _C.AGENT_SILENT, _C.DEVICE_PLUGIN_FOREIGN, _C.NODE_CORDONED,
    _C.NODE_UNSCHEDULABLE, _C.TAINT_NOT_TOLERATED, _C.DEVICE_UNHEALTHY, _C.DEVICE_CORDONED,
}  # fmt: skip
# A pod behind the first one of a fifo queue exceeds no limit: it waits for a pod that does not fit.
EXCEEDED: Final = LIMIT_CODES - {_C.QUEUE_FIRST_WAITS}
NEEDS_MAX: Final = 10_000  # pod shapes whose needs are kept
WHOLE: Final = CARD * CARD  # a whole request, as a fraction

Kind = tuple[object, ...]
_fields_of = attrgetter(
    "model", "family", "mode", "memory_mib", "physical_memory_mib", "cores", "slots"
)


def kind_of(device: schemas.Device) -> Kind:
    """Return a key that is equal for devices of which pods request the same fraction."""
    sizes = tuple((each.profile, each.memory_mib) for each in device.mig_sizes)
    return (*_fields_of(device), sizes)


Slot = tuple[Kind, bool]  # whether it is the rest of devices in use
Group = tuple[Part, tuple[Slot, ...]]


class _Need(NamedTuple):
    kind: Kind
    cards: int  # millionths of a device
    whole: bool


Needs = tuple[tuple[_Need, ...], ...]  # for each family, by kind


class _Wish(Struct, frozen=True):
    group: Group
    row: str
    cards: tuple[int, ...]  # for each slot of the group


class _Wanted(Struct):
    """What the pods of a group request of each slot, and how its device time is divided."""

    totals: list[int]
    divisions: list[Division | None]


def cause_of(state: State, pod: PodState) -> Part | None:
    """Return why a pending pod is not placed.

    Return None if no device could run the pod now, however many are free."""
    refused = pod.refusal
    if pod.submitted.gates:
        return None
    if pod.uid in state.nominated:  # pods are being evicted for it
        return Part.DELAYED
    if refused is not None:
        return _cause_of_refusal(refused)
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    declared = group is None or group.observed is not None
    return Part.DELAYED if declared else Part.GANG


def _cause_of_refusal(refused: PodRefused) -> Part | None:
    # Not by `refused.gang.fitting`: it is not reported again when it alone changes.
    codes = refused.reasons.keys()
    if codes & NOT_READY:
        return None
    if codes & EXCEEDED:
        return Part.QUOTA
    if _C.GANG_INCOMPLETE in codes:
        return Part.GANG
    if codes & TOPOLOGY:
        return Part.TOPOLOGY
    if codes - CLOSED - {_C.NODE_NOMINATED}:
        return Part.FRAGMENTED
    if refused.gang is not None and sum(refused.reasons.values()) < refused.nodes:
        return Part.FRAGMENTED  # some nodes have room for the pod, but not for its gang
    return Part.DELAYED if _C.NODE_NOMINATED in codes else None


class Lost(Account):
    """Measures what pods have allocated, and why the rest of each device did no work."""

    def __init__(self, state: State, by: By, meters: Meters, idle: int = IDLE) -> None:
        """Start with the current causes. Ignore idle periods below `idle` microseconds."""
        self._kinds: dict[Kind, schemas.Device] = {}  # an example of each
        self._devices: Counter[Kind] = Counter()
        self._other_needs = True  # kinds came or went, or needs of known kinds changed
        self._free: Counter[Slot] = Counter()
        self._wanted: dict[Group, _Wanted] = {}
        self._groups: list[Group] | None = None  # in the order of attribution
        self._wishes: dict[str, tuple[_Wish, ...]] = {}  # by the uid of each pending pod
        self._needs: dict[bytes, Needs] = {}
        self._divisions: dict[Slot, Division] = {}  # among rows of devices
        self._pods_on: Counter[str] = Counter()  # pods with devices, by node
        self._held_gangs: dict[str, None] = {}
        self._stale = True  # the rates are of an earlier state
        meters.closing = self._settle
        super().__init__(state, by, meters, idle)
        self._other_needs = False
        self._wish(state.pods.values())

    def observe(self, change: Change, moment: int) -> None:
        """Meter a change that the fold made at `moment`. Raises `TooMuch`."""
        if self._stale and self._meters.now < min(moment, self._meters.end):
            self._attribute()
        super().observe(change, moment)
        if not change.refused:
            self._follow(change)
        if self._other_needs:
            self._other_needs = False
            self._needs.clear()
            self._wish([self._state.pods[uid] for uid in self._wishes])

    def _follow(self, change: Change) -> None:
        data, state = change.data, self._state
        if change.pod is not None:
            self._wish((change.pod,))
            if isinstance(data, schemas.PodBound | schemas.SharesAllocated):
                self._recount((change.pod,))
        if isinstance(data, schemas.PodEvicted) and data.beneficiary in state.pods:
            self._wish((state.pods[data.beneficiary],))
        elif isinstance(data, schemas.PodGroupObserved | schemas.PodGroupGone):
            group = state.groups.get(data.group)
            self._wish(group.pods.values() if group else ())
        elif isinstance(data, schemas.ConfigurationChanged):
            self._other_needs = True  # other MIG geometries
        for name in [*self._held_gangs]:
            group = state.groups.get(name)
            if group is None or not group.held:
                del self._held_gangs[name]
                self._recount(group.pods.values() if group else ())

    def finish(self) -> None:
        """End the period. Pods that are still allocated or pending count up to its end."""
        self._attribute()
        super().finish()

    # ---- what is allocated and what is left ----

    def _part_of(self, pod: PodState) -> Part:
        if is_held(self._state, pod):
            self._held_gangs[pod.submitted.group] = None
            return Part.GANG
        return Part.DELAYED if pod.phase is PLACED else Part.ALLOCATED

    def _recount(self, pods: Iterable[PodState]) -> None:
        for pod in pods:
            before = self._held.get(pod.uid, ())
            super()._recount((pod,))
            for sign, held in ((-1, before), (1, self._held.get(pod.uid, ()))):
                for name in {each.node: None for each in held}:
                    self._pods_on[name] += sign

    def _node_changed(self, change: Change, node: NodeState) -> None:
        before = self._pods_on[node.name] > 0
        super()._node_changed(change, node)
        if node.cordoned and before != (self._pods_on[node.name] > 0):
            self._count(node)

    def _rest_of(self, node: NodeState, device: DeviceState) -> Rest | None:
        rest = super()._rest_of(node, device)
        if rest is None or rest.part is not Part.CORDONED:
            return rest
        in_use = self._pods_on[node.name] > 0 if node.cordoned else not device.idle
        return structs.replace(rest, part=Part.DRAINING) if in_use else rest

    def _turn(self, rest: Rest, sign: int) -> None:
        super()._turn(rest, sign)
        kind = kind_of(rest.device)
        self._devices[kind] += sign
        if not self._devices[kind]:
            del self._devices[kind]
        if (kind in self._devices) != (kind in self._kinds):
            self._other_needs = self._stale = True
            if self._kinds.pop(kind, None) is None:
                self._kinds[kind] = rest.device
        if rest.part is Part.FREE:
            self._stale = True
            slot = (kind, rest.cards < CARD)
            self._free[slot] += sign * rest.cards
            if self._by.of_devices:
                division = self._divisions.get(slot)
                division = self._weighed(division, slot, rest.key[0], sign * rest.cards)
                if division is not None:
                    self._divisions[slot] = division
                else:
                    self._divisions.pop(slot, None)

    # ---- what pending pods request ----

    def _wish(self, pods: Iterable[PodState]) -> None:
        for pod in pods:
            before = self._wishes.pop(pod.uid, ())
            after: tuple[_Wish, ...] = ()
            if pod.phase is PENDING and self._state.pods.get(pod.uid) is pod:
                self._wishes[pod.uid] = after = tuple(self._wishes_of(pod))
            if before != after:
                self._stale = True
                for sign, wishes in ((1, after), (-1, before)):
                    for wish in wishes:
                        self._add(wish, sign)

    def _wishes_of(self, pod: PodState) -> Iterator[_Wish]:
        part = cause_of(self._state, pod)
        if part is None:
            return
        row = NO_POD if self._by.of_devices else self._by.row_of(self._state, pod, "", "")
        used = (False, True) if part is Part.FRAGMENTED else (False,)
        known = self._needs.get(pod.shape_key)
        if known is None:
            known = tuple(self._computed_needs(pod.submitted.shape))
            remember(self._needs, pod.shape_key, known, most=NEEDS_MAX)
        for needs in known:
            slots: list[Slot] = []
            cards: list[int] = []
            for need in needs:
                for in_use in used if need.whole else (True, False):
                    slots.append((need.kind, in_use))
                    cards.append(need.cards)
            yield _Wish((part, tuple(slots)), row, tuple(cards))

    def _computed_needs(self, shape: Shape) -> Iterator[tuple[_Need, ...]]:
        # Devices that the pod names by id or index count as any device of their kind.
        devices: DeviceConstraints = structs.replace(
            shape.devices, use_ids=(), nouse_ids=(), indexes=()
        )
        geometries = self._state.configuration.nvidia.known_mig_geometries
        rules = Rules(FleetFacts(geometries, largest_gpu_mib(self._kinds.values())))
        for family in sorted({ask.family for ask in shape.asks}):
            needs: list[_Need] = []
            for kind, device in self._kinds.items():
                together = most = 0  # init containers run before the others
                whole = True
                for ask in shape.asks:
                    need = need_of(ask, devices, device, rules) if ask.family == family else None
                    if isinstance(need, Demand):
                        share = card_part(device, need.memory_mib, need.cores)
                        whole &= need.alone or share >= CARD
                        most = max(most, ask.count * share)
                        together += 0 if ask.init else ask.count * share
                if cards := max(together, most):
                    needs.append(_Need(kind, cards, whole))
            yield tuple(sorted(needs))

    def _add(self, wish: _Wish, sign: int) -> None:
        group, slots = wish.group, wish.group[1]
        wanted = self._wanted.get(group)
        if wanted is None:
            wanted = self._wanted[group] = _Wanted([0] * len(slots), [None] * len(slots))
            self._groups = None
        for at, cards in enumerate(wish.cards):
            wanted.totals[at] += sign * cards
            if not self._by.of_devices:
                wanted.divisions[at] = self._weighed(
                    wanted.divisions[at], slots[at], wish.row, sign * cards
                )
        if not any(wanted.totals):
            del self._wanted[group]
            self._groups = None

    # ---- attribution ----

    def _weighed(
        self, division: Division | None, slot: Slot, row: str, cards: int
    ) -> Division | None:
        # The division with this change of a row's weight; None if no row has a weight.
        now = self._meters.now
        if division is None:

            def give(row: str, part: Part, cards: int) -> None:
                source, model = row if self._by.of_devices else NO_POD, str(slot[0][0])
                self._meters.move((source, model), (row, model), part, cards)

            division = Division(now, give)
        division.weigh(row, cards, now)
        return division if division.total else None

    def _settle(self, edge: int) -> None:
        of_pods = (division for wanted in self._wanted.values() for division in wanted.divisions)
        for division in (*self._divisions.values(), *of_pods):
            if division is not None:
                division.settle(edge)

    def _attribute(self) -> None:
        """Set how much of the free device parts counts for each cause from now on.

        It may be called after the fold of the next event, so it must not read the state."""
        if self._groups is None:
            self._groups = sorted(self._wanted)
        self._stale = False
        left = Counter(self._free)
        taken: dict[Slot, dict[Part, int]] = {slot: {} for slot in left}
        for group in self._groups:
            part, slots = group
            rest = WHOLE  # the fraction of the request that no slot has met yet
            known = self._wanted[group]
            for slot, wanted, division in zip(slots, known.totals, known.divisions, strict=True):
                cards = min(left[slot], wanted * rest // WHOLE)
                if cards:
                    left[slot] -= cards
                    rest -= -(-cards * WHOLE // wanted)
                    taken[slot][part] = taken[slot].get(part, 0) + cards
                if division is not None:
                    division.divide({part: cards} if cards else {}, self._meters.now)
        for slot, division in self._divisions.items():
            division.divide(taken.get(slot, {}), self._meters.now)
