"""The linear program behind the prices: how the pods that usually come fill the cluster best.

For each type of node: how many pods of each shape it takes, within its CPU, its memory and its
devices. Shares of one device are a flow from 0 to 100 percent along arcs of their sizes (the
arc-flow formulation of the cutting-stock problem), so that sizes which cannot stand side by side
are not counted as if they could. Demand is in proportion to the pods seen, a little more than would
fill the devices of each family. What one more pod of a shape would have to displace is its price.

Devices are counted in devices, CPU in cores and memory in GiB, which keeps the numbers near one.
"""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.pricing.fleet import NodeType
from apportion.core.placement.pricing.shape_histogram import SeenShape
from apportion.core.placement.pricing.sizes import NEVER, Sort, sort_of
from apportion_schemas.quantities import WHOLE

HOST_USE: Final = 0.95  # of a type's CPU and memory: the last of it is never filled
OVERDEMAND: Final = 1.05  # of the devices: enough that they are scarce, or nothing has a price
CPU_WORTH: Final = 0.1  # of a pod without devices: of the devices that usually go with its CPU
SHAPES_MAX: Final = 128  # in the program; rarer ones are worth what they take
MILLI: Final = 1000
GIB: Final = 1024

Floats = NDArray[np.float64]


class Program(NamedTuple):
    """Maximise `cost · x` for x ≥ 0 and A x ≤ `limits`; A has `value[i]` at `row[i], column[i]`.

    `demands` gives for each shape the row that limits its pods.
    """

    cost: Floats
    limits: Floats
    row: NDArray[np.int32]
    column: NDArray[np.int32]
    value: Floats
    demands: dict[Sort, int]


class Solution(NamedTuple):
    """By row of the program: what one more of its limit would earn, and how much of it is used."""

    price: Floats
    used: Floats


def sizes(shapes: list[SeenShape], types: list[NodeType]) -> dict[Sort, float]:
    """What a pod of each shape takes, in devices: on the mean of the devices that can take it."""
    found = {sort_of(shape): _mean_size(sort_of(shape), types) for shape in shapes}
    cores = sum(s.pods * s.cpu_milli for s in shapes if s.ask is not None) / MILLI
    taken = sum(shape.pods * found[sort_of(shape)] for shape in shapes)
    devices_per_core = taken / cores if taken and cores else 1.0
    for shape in shapes:
        if shape.ask is None:
            found[sort_of(shape)] = CPU_WORTH * devices_per_core * shape.cpu_milli / MILLI
    return found


def build(shapes: list[SeenShape], types: list[NodeType]) -> Program:
    """The program for these shapes on these types of node."""
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


def _mean_size(sort: Sort, types: list[NodeType]) -> float:
    taken = devices = 0.0
    for each in types:
        size = sort.size_on(each.device)
        if sort.ask is not None and size != NEVER:
            taken += each.nodes * each.devices * sort.ask.count * size / WHOLE
            devices += each.nodes * each.devices
    return taken / devices if devices else 0.0


def _demand(
    shapes: list[SeenShape], types: list[NodeType], size_of: dict[Sort, float]
) -> dict[Sort, float]:
    """Pods of each shape, so many that they would fill the devices of their family."""
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
        """A new row."""
        self._limits.append(most)
        return len(self._limits) - 1

    def column(self, cost: float, *entries: tuple[int, float]) -> None:
        """A new column with its entries: row and value."""
        at = len(self._cost)
        self._cost.append(cost)
        self._entries.extend((row, at, value) for row, value in entries if value)

    def program(self, demands: dict[Sort, int]) -> Program:
        """All of it, the entries column by column."""
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
    """The ways to cut one device into shares, larger before smaller; `shared` has their rows."""
    descending = sorted(shared, reverse=True)
    first_allowed = {0: 0}  # position in percent: the largest size that may follow there
    inflow = {0: devices}  # position: the row that limits what goes on from there
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
