"""Build the linear program behind the prices: how the frequent pods fill the cluster best.

Shares of one device are a flow from 0 to 100 percent along arcs of their sizes (the arc-flow
formulation of the cutting-stock problem). A pod's price is the value that one more such pod would
displace."""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.pricing.sizes import NEVER, SeenShape, Sort, sort_of
from apportion_schemas import Device, PricesLearnt
from apportion_schemas.pricing import VALUE_MAX, PricedShape
from apportion_schemas.quantities import WHOLE

HOST_USE: Final = 0.95  # of a type's CPU and memory: they never fill completely
OVERDEMAND: Final = 1.05  # of the devices: they must be scarce, or nothing has a price
# of a pod without devices: fraction of the devices that usually go with its CPU
CPU_WORTH: Final = 0.1
SHAPES_MAX: Final = 128  # in the program; rarer ones are worth what they take
MILLI: Final = 1000
GIB: Final = 1024
TYPES_MAX: Final = 32  # smaller types beyond are left out
STEPS_PER_DOUBLING: Final = 4  # amounts of one type are within a fifth of each other
LEAST_PART: Final = 0.3  # the minimum worth of a shape, as a fraction of its size
MILLION: Final = 1_000_000

Floats = NDArray[np.float64]


class NodeType(NamedTuple):
    """A group of similar nodes, described by an average node."""

    device: Device | None
    devices: int
    cpu_milli: int
    memory_mib: int
    nodes: int


def node_types(state: State) -> list[NodeType]:
    """Group the ready nodes by type, and return the types with the most devices."""
    groups: dict[tuple[str, ...], list[NodeState]] = {}
    for name in sorted(state.nodes):
        node = state.nodes[name]
        if node.ready and not node.drained:
            groups.setdefault(_key(node), []).append(node)
    found = []
    for _, nodes in sorted(groups.items()):
        present = [state.device for state in nodes[0].devices if state.present]
        hosts = [node.host for node in nodes]
        found.append(
            NodeType(
                device=present[0] if present else None,
                devices=len(present),
                cpu_milli=sum(host.cpu_milli for host in hosts) // len(hosts),
                memory_mib=sum(host.memory_mib for host in hosts) // len(hosts),
                nodes=len(nodes),
            )
        )
    largest = sorted(found, key=lambda t: -t.nodes * (t.devices * 1_000_000 + t.cpu_milli))
    return largest[:TYPES_MAX]


def _key(node: NodeState) -> tuple[str, ...]:
    host = node.host
    steps = (_step(host.cpu_milli), _step(host.memory_mib))
    present = [state.device for state in node.devices if state.present]
    if not present:
        return ("", *(f"{step:03}" for step in steps))
    device = present[0]
    what = (device.family, device.model, device.mode)
    how_much = (device.memory_mib, device.physical_memory_mib, device.cores, device.slots)
    return (*what, *(f"{each:09}" for each in (*how_much, len(present), *steps)))


def _step(amount: int) -> int:
    # One of `STEPS_PER_DOUBLING` steps between powers of two.
    doublings = amount.bit_length()
    within = amount * STEPS_PER_DOUBLING * 2 >> doublings
    return doublings * STEPS_PER_DOUBLING + within


class Program(NamedTuple):
    """A linear program: maximise `cost · x` for x ≥ 0 and A x ≤ `limits`.

    The entries of A are `value[i]` at `row[i], column[i]`."""

    cost: Floats
    limits: Floats
    row: NDArray[np.int32]
    column: NDArray[np.int32]
    value: Floats
    demands: dict[Sort, int]


class Solution(NamedTuple):
    """The prices that the solver found, and how much of each limit is used."""

    price: Floats  # the worth of one more unit of each limit
    used: Floats  # of each limit


def sizes(shapes: list[SeenShape], types: list[NodeType]) -> dict[Sort, float]:
    """Return each shape's size: the mean number of devices that one pod takes."""
    found: dict[Sort, float] = {}
    for sort in map(sort_of, shapes):
        size_sum = devices = 0.0
        for each in types:
            size = sort.size_on(each.device)
            if sort.ask is not None and size != NEVER:
                size_sum += each.nodes * each.devices * sort.ask.count * size / WHOLE
                devices += each.nodes * each.devices
        found[sort] = size_sum / devices if devices else 0.0
    cores = sum(s.pods * s.cpu_milli for s in shapes if s.ask is not None) / MILLI
    taken = sum(shape.pods * found[sort_of(shape)] for shape in shapes)
    devices_per_core = taken / cores if taken and cores else 1.0
    for shape in shapes:
        if shape.ask is None:
            found[sort_of(shape)] = CPU_WORTH * devices_per_core * shape.cpu_milli / MILLI
    return found


def build(shapes: list[SeenShape], types: list[NodeType]) -> Program:
    """Return the program for these shapes on these types of node."""
    size_of = sizes(shapes, types)
    writer = _Writer()
    demands = {}
    for sort, most in _demand(shapes, types, size_of).items():
        demands[sort] = writer.limit(most)
    pods, memory = Counter[Sort](), Counter[Sort]()
    for shape in shapes:
        pods[sort_of(shape)] += shape.pods
        memory[sort_of(shape)] += shape.pods * shape.memory_mib
    memory_gib = {sort: memory[sort] / count / GIB for sort, count in pods.items()}
    for each in types:
        _add_type(writer, each, demands, size_of, memory_gib)
    return writer.program(demands)


def _demand(
    shapes: list[SeenShape], types: list[NodeType], size_of: dict[Sort, float]
) -> dict[Sort, float]:
    # Pods of each shape, enough to fill the devices of their family.
    capacity: dict[str, float] = {}
    wanted: dict[str, float] = {}
    for each in types:
        if each.device is not None:
            family = each.device.family
            capacity[family] = capacity.get(family, 0.0) + each.nodes * each.devices
    for shape in shapes:
        if shape.ask is not None:
            family, size = shape.ask.family, size_of[sort_of(shape)]
            wanted[family] = wanted.get(family, 0.0) + shape.pods * size
    times = {
        family: OVERDEMAND * capacity.get(family, 0.0) / amount
        for family, amount in wanted.items()
        if amount
    }
    overall = OVERDEMAND * sum(capacity.values()) / (sum(wanted.values()) or 1.0)
    pods: dict[Sort, float] = {}
    for shape in shapes:
        scale = overall if shape.ask is None else times.get(shape.ask.family, 0.0)
        if scale:
            pods[sort_of(shape)] = pods.get(sort_of(shape), 0.0) + scale * shape.pods
    most = sorted(pods, key=lambda sort: (-pods[sort] * size_of[sort], repr(sort)))[:SHAPES_MAX]
    return {sort: pods[sort] for sort in most}


class _Writer:
    def __init__(self) -> None:
        self._cost: list[float] = []
        self._limits: list[float] = []
        self._entries: list[tuple[int, int, float]] = []

    def limit(self, most: float) -> int:
        self._limits.append(most)
        return len(self._limits) - 1

    def column(self, cost: float, *entries: tuple[int, float]) -> None:
        at = len(self._cost)
        self._cost.append(cost)
        self._entries.extend((row, at, value) for row, value in entries if value)

    def program(self, demands: dict[Sort, int]) -> Program:
        rows, columns, values = zip(*self._entries, strict=True) if self._entries else ((),) * 3
        return Program(
            cost=np.array(self._cost),
            limits=np.array(self._limits),
            row=np.array(rows, np.int32),
            column=np.array(columns, np.int32),
            value=np.array(values, np.float64),
            demands=demands,
        )


def _add_type(
    writer: _Writer,
    each: NodeType,
    demands: dict[Sort, int],
    size_of: dict[Sort, float],
    memory_gib: dict[Sort, float],
) -> None:
    cpu = writer.limit(HOST_USE * each.nodes * each.cpu_milli / MILLI)
    memory = writer.limit(HOST_USE * each.nodes * each.memory_mib / GIB)
    devices = writer.limit(each.nodes * each.devices)
    shared: dict[int, int] = {}
    for sort, demand in demands.items():
        host = (cpu, sort.cpu_milli / MILLI), (memory, memory_gib[sort])
        if sort.cpu_milli > each.cpu_milli or memory_gib[sort] * GIB > each.memory_mib:
            continue
        if sort.ask is None:
            writer.column(size_of[sort], (demand, 1), *host)
            continue
        size = sort.size_on(each.device)
        if size == NEVER or sort.ask.count > each.devices:
            continue
        if size == WHOLE:
            used = (devices, sort.ask.count)
        else:
            if size not in shared:
                shared[size] = writer.limit(0)
            used = (shared[size], sort.pieces(size))
        writer.column(size_of[sort], (demand, 1), *host, used)
    _add_flow(writer, shared, devices)


def _add_flow(writer: _Writer, shared: dict[int, int], devices: int) -> None:
    # The ways to cut one device into shares, larger first; `shared` has the row of each size.
    descending = sorted(shared, reverse=True)
    first_allowed = {0: 0}  # position in percent: the largest size that may follow there
    inflow = {0: devices}  # position: the row that limits the flow out of it
    for position in range(WHOLE):
        if position not in first_allowed:
            continue
        for order in range(first_allowed[position], len(descending)):
            size = descending[order]
            end = position + size
            if end > WHOLE:
                continue
            first_allowed[end] = min(first_allowed.get(end, order), order)
            if end not in inflow:
                inflow[end] = writer.limit(0)
            starts = (inflow[position], 1)
            writer.column(0, (shared[size], -1), starts, (inflow[end], -1))


def appraise(
    shapes: list[SeenShape],
    types: list[NodeType],
    program: Program,
    solution: Solution,
    *,
    pods: int,
) -> PricesLearnt:
    """Return the prices that the solution gives these shapes; `pods` is the total number seen."""
    size_of = sizes(shapes, types)
    displaced = {
        sort: size_of[sort] - float(solution.price[row]) for sort, row in program.demands.items()
    }
    amounts = {sort: float(solution.used[row]) for sort, row in program.demands.items()}
    with_devices = [sort for sort in displaced if sort.ask is not None]
    all_worth = sum(amounts[sort] * displaced[sort] for sort in with_devices)
    taken = sum(amounts[sort] * size_of[sort] for sort in with_devices)
    scale = taken / all_worth if all_worth > 0 else 1.0
    priced = []
    for shape in shapes:
        sort = sort_of(shape)
        size = size_of[sort]
        worth = max(scale * displaced.get(sort, size), LEAST_PART * size)
        priced.append(
            PricedShape(
                ask=shape.ask,
                cpu_milli=shape.cpu_milli,
                memory_mib=shape.memory_mib,
                pods=shape.pods,
                size=_micro(size),
                value=_micro(worth),
                modes=shape.modes,
                use_types=shape.use_types,
            )
        )
    return PricesLearnt(pods=pods, shapes=tuple(priced))


def _micro(devices: float) -> int:
    return min(max(round(devices * MILLION), 0), VALUE_MAX)
