"""Choose the exact devices of each container on the chosen node.

The search backtracks: if a container finds no device, it tries other devices for earlier
containers. Otherwise a pod that fits could be refused, and no event would retry it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from apportion.core.devices.demand import Demand
from apportion.core.devices.sets import whole_sets
from apportion.core.devices.shares import DeviceState, slice_mask, template_cpu
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index import packed
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.columns import HOST, Columns
from apportion.core.placement.scores.devices import Order
from apportion_schemas import Device, MigInstance, Share

STEPS_MAX: Final = 64  # choices tried for one pod on one node; equivalent devices count once

Part = tuple[int, int, str]  # memory in MiB, cores and template of a share
Cut = tuple[int, str]  # a MIG device's occupied slices, and their group
Left = tuple[int, str, int]  # the same, and the device's free memory in MiB
UNCUT: Final[Left] = (0, "", 0)  # if the ask takes no MIG instance of any kind of device


class _Room:
    """One node's free device amounts, while the containers of one pod take their shares."""

    def __init__(self, columns: Columns, row: int) -> None:
        self.devices: list[DeviceState] = columns.nodes[row].devices
        self.free: list[int] = columns.free[row].tolist()[HOST + 1 :]
        self.kinds: list[int] = columns.kind[row].tolist()[HOST + 1 :]
        self.cuts: dict[int, Cut] = {}
        self.parts: dict[int, Part] = {}  # the pod's own last one, by device

    def share(self, ask: AskColumns, at: int) -> Share:
        return _share(ask, self.kinds[at], self.devices[at], self.left(at))

    def copy(self) -> "_Room":
        other = _Room.__new__(_Room)
        other.devices, other.kinds = self.devices, self.kinds
        other.free, other.cuts = self.free.copy(), self.cuts.copy()
        other.parts = self.parts.copy()
        return other

    def alike(self, option: Iterable[int]) -> tuple[object, ...]:
        """Return a key that is equal for sets of devices with equal kinds, free amounts and
        parts."""
        found = [
            (self.kinds[at], self.free[at], *self._cut(at), self.parts.get(at, ())) for at in option
        ]
        return tuple(sorted(found))

    def _cut(self, at: int) -> Cut:
        state = self.devices[at]
        return self.cuts.get(at) or (state.taken, state.group)

    def left(self, at: int) -> Left:
        return *self._cut(at), packed.memory_of(self.free[at])

    def serves(self, ask: AskColumns, at: int) -> bool:
        """Return True if the pod has no other part of this device than the one for the ask."""
        return at not in self.parts or self.parts[at] == _part(self.share(ask, at))

    def take(self, at: int, share: Share) -> None:
        self.parts[at] = _part(share)
        cpu = template_cpu(share, self.devices[at])
        self.free[at] -= packed.amounts(share.memory_mib, share.cores, 1, cpu)
        if share.instance is not None:
            slices = self.cuts[at][0] if at in self.cuts else self.devices[at].taken
            self.cuts[at] = slices | slice_mask(share), share.instance.group
        elif share.template is not None:
            self.cuts[at] = 0, share.template


def assign(class_: PlacementClass, columns: Columns, row: int) -> tuple[Share, ...] | None:
    """Return the shares for a pod of this class on the node, in the order of its asks, or None."""
    if class_.picks_one:
        ask, at = class_.asks[0], class_.pick(columns, row)
        if at >= 0:
            state, kind = columns.nodes[row].devices[at], columns.kind.item(row, HOST + 1 + at)
            cuts = ask.cuts_instances
            left = (state.taken, state.group, state.memory_free_mib) if cuts else UNCUT
            if not cuts or _has_place(ask, kind, left):
                return (_share(ask, kind, state, left),)
    numa_bind = class_.shape.devices.numa_bind
    order = class_.device_order(columns, row)
    room = _Room(columns, row)
    candidates: list[Sequence[int]] = [range(len(room.devices))]
    if numa_bind:  # one NUMA node at a time
        nodes = [state.device.numa for state in room.devices]
        known = sorted({numa for numa in nodes if numa is not None})
        # A machine with only one NUMA node reports none.
        candidates = [
            [at for at, node in enumerate(nodes) if node == numa] for numa in known
        ] or candidates
    for chosen in candidates:
        shares = _assign(class_, row, room, chosen, order)
        if shares is None and len(class_.asks) > 1:
            shares = _Search(class_, row, chosen, order).run(_Room(columns, row))
        if shares is not None:
            return shares
        if numa_bind:
            room = _Room(columns, row)
    return None


def _assign(
    class_: PlacementClass, row: int, room: _Room, chosen: Sequence[int], order: Order
) -> tuple[Share, ...] | None:
    asks = class_.asks
    if len(asks) == 1:
        found = _choose(asks[0], row, room, chosen, order)
        return tuple(found.values()) if found is not None else None
    shares: dict[int, list[Share]] = {}
    kinds = set(room.kinds)
    for position in sorted(range(len(asks)), key=lambda at: _hardness(asks[at], kinds)):
        found = _choose(asks[position], row, room, chosen, order)
        if found is None:
            return None
        for at, share in found.items():
            room.take(at, share)
        shares[position] = list(found.values())
    return tuple(share for position in sorted(shares) for share in shares[position])


class _Search:
    """A backtracking search over the devices of all containers, limited to STEPS_MAX steps."""

    def __init__(
        self, class_: PlacementClass, row: int, chosen: Sequence[int], order: Order
    ) -> None:
        self._asks = class_.asks
        # Devices with equal amounts differ by what they leave of a set.
        self._each = bool([ask for ask in class_.asks if ask.together])
        self._row = row
        self._chosen = chosen
        self._order = order
        self._steps = STEPS_MAX

    def run(self, room: _Room) -> tuple[Share, ...] | None:
        kinds = set(room.kinds)
        asks = self._asks
        ranked = sorted(range(len(asks)), key=lambda at: _hardness(asks[at], kinds))
        found = self._place(ranked, room)
        return tuple(share for at in sorted(found) for share in found[at]) if found else None

    def _place(self, ranked: Sequence[int], room: _Room) -> dict[int, list[Share]] | None:
        if not ranked:
            return {}
        position, *later = ranked
        tried: set[tuple[object, ...]] = set()
        for option in self._options(self._asks[position], room):
            each = self._each or self._asks[position].elsewhere is not None
            alike = tuple(option) if each else room.alike(option)
            if alike in tried:
                continue
            tried.add(alike)
            if self._steps == 0:
                return None
            self._steps -= 1
            after = room.copy()
            for at, share in option.items():
                after.take(at, share)
            found = self._place(later, after)
            if found is not None:
                return {**found, position: list(option.values())}
        return None

    def _options(self, ask: AskColumns, room: _Room) -> Iterator[dict[int, Share]]:
        if ask.chain.best_linked:
            found = _choose(ask, self._row, room, self._chosen, self._order)
            if found is not None:
                yield found
        fitting = _fitting(ask, self._row, room, self._chosen)
        fitting.sort(key=lambda at: self._order(room.free[at], room.devices[at]))
        for some in _sets(ask, fitting, room):
            yield {at: room.share(ask, at) for at in some}


def _sets(ask: AskColumns, fitting: list[int], room: _Room) -> Iterator[Sequence[int]]:
    if not ask.together:
        yield from combinations(fitting, ask.ask.count)
        return
    devices = [room.devices[at].device for at in fitting]
    for chosen in whole_sets(devices, ask.ask.count):
        yield [fitting[position] for position in chosen]


def _hardness(ask: AskColumns, kinds: Iterable[int]) -> tuple[bool, int, int]:
    """Return a sort key that puts the hardest ask first: exclusive devices, then most memory."""
    wanted = [found for kind in kinds if isinstance(found := ask.demands[kind], Demand)]
    alone = any(found.alone for found in wanted)
    return not alone, -max((found.memory_mib for found in wanted), default=0), -ask.ask.count


def _choose(
    ask: AskColumns, row: int, room: _Room, chosen: Sequence[int], order: Order
) -> dict[int, Share] | None:
    fitting = _fitting(ask, row, room, chosen)
    count = ask.ask.count
    if len(fitting) < count:
        return None
    keyed = [(order(room.free[at], room.devices[at]), at) for at in fitting] if fitting[1:] else ()
    if count == 1 and not (keyed and ask.chain.best_linked):
        at = min(keyed)[1] if keyed else fitting[0]
        return {at: room.share(ask, at)}
    picked = [at for _, at in sorted(keyed)]
    if ask.together:
        some = next(_sets(ask, picked, room), None)
        return {at: room.share(ask, at) for at in some} if some is not None else None
    devices = [room.devices[at].device for at in picked]
    linked: Sequence[int] = range(count)
    if [device for device in devices if device.nvlink_lanes]:
        # The best linked set of several. A single one is the least linked device if links decide:
        # the others stay together (HAMi, `computeWorstSingleCard`).
        linked = (least_linked(devices),)
        if count > 1:
            linked = best_linked(devices, count).positions
    return {picked[at]: room.share(ask, picked[at]) for at in linked}


def _fitting(ask: AskColumns, row: int, room: _Room, chosen: Sequence[int]) -> list[int]:
    needs, kinds, free = ask.needs, room.kinds, room.free
    fitting = [at for at in chosen if not packed.lacking(free[at], needs[kinds[at]])]
    if ask.cuts_instances:
        fitting = [at for at in fitting if _has_place(ask, kinds[at], room.left(at))]
    if ask.parts_alike and room.parts:
        fitting = [at for at in fitting if room.serves(ask, at)]
    if ask.elsewhere is not None:
        elsewhere = ask.elsewhere[row].tolist()[HOST + 1 :]
        fitting = [at for at in fitting if not elsewhere[at]]
    return fitting


def _part(share: Share) -> Part:
    return share.memory_mib, share.cores, share.template or ""


def _has_place(ask: AskColumns, kind: int, left: Left) -> bool:
    wanted = ask.demands[kind]
    if not isinstance(wanted, Demand):
        return True
    if wanted.profile is None:
        return wanted.template is None or left[1] in ("", wanted.template)
    for _ in wanted.free_places(*left):
        return True
    return False


def _share(ask: AskColumns, kind: int, state: DeviceState, left: Left) -> Share:
    wanted, device = ask.demand_of(kind), state.device
    if wanted.profile is None:
        return Share(
            container=ask.ask.container,
            device=device.id,
            memory_mib=wanted.memory_mib,
            cores=wanted.cores,
            template=wanted.template,
        )
    place, memory_mib = next(wanted.free_places(*left))
    instance = MigInstance(
        profile=place.profile.name,
        start=place.start,
        size=place.profile.size,
        group=place.group,
        position=place.position,
    )
    return Share(
        container=ask.ask.container,
        device=device.id,
        memory_mib=memory_mib,
        cores=0,  # an instance has its own cores
        instance=instance,
    )


SEEDS_MAX: Final = 16  # first devices from which sets are grown


class Linked(NamedTuple):
    """A choice of devices, and the NVLink lanes between all pairs of them."""

    positions: tuple[int, ...]
    lanes: int  # sum over all pairs


def best_linked(devices: Sequence[Device], count: int) -> Linked:
    """Choose `count` of these devices with many NVLink lanes between them.

    The search is greedy: each step adds the device with the most lanes to those chosen."""
    lanes = [[_lanes(one, other) for other in devices] for one in devices]
    if count >= len(devices):
        pairs = [sum(row[at + 1 :]) for at, row in enumerate(lanes)]
        return Linked(tuple(range(len(devices))), sum(pairs))
    bound = max(map(max, lanes)) * count * (count - 1) // 2
    best = Linked(tuple(range(count)), -1)
    for seed in range(min(SEEDS_MAX, len(devices))):
        taken, total, gains = [seed], 0, list(lanes[seed])
        left = [position for position in range(len(lanes)) if position != seed]
        while len(taken) < count:
            nearest = max(left, key=lambda position: (gains[position], -position))
            total += gains[nearest]
            taken.append(nearest)
            left.remove(nearest)
            gains = [gain + more for gain, more in zip(gains, lanes[nearest], strict=True)]
        if total > best.lanes:
            best = Linked(tuple(sorted(taken)), total)
        if best.lanes == bound:
            break
    return best


def least_linked(devices: Sequence[Device]) -> int:
    """Return the position of the (first) device with the fewest NVLink lanes to the others."""
    return min(
        range(len(devices)),
        key=lambda at: (sum(_lanes(devices[at], other) for other in devices), at),
    )


def _lanes(one: Device, other: Device) -> int:
    return max(one.nvlink_lanes.get(other.id, 0), other.nvlink_lanes.get(one.id, 0))
