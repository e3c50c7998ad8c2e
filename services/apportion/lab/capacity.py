"""Find out which types of node would have saved waiting in a recorded span, and at which price.

Each type is one replay of the span with nodes of the type added at its start. Invariant: all
replays differ from the unchanged one only by these nodes, so their waits are comparable."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.devices.simulating import SimulationInvalid, models, simulated_devices
from apportion.core.explain.text.words import listed
from apportion.core.reports.answers import CapacityAnswer, CapacityRow
from apportion.core.reports.prices import Prices
from apportion.lab.changes import WishInvalid
from apportion.lab.meter import HOUR_S
from apportion.lab.recording import Recorded
from apportion.lab.replaying import Otherwise, Replay
from apportion.runtime.files.fleets import (
    CPU_MILLI_PER_DEVICE,
    MEMORY_MIB_PER_DEVICE,
    SimulatedNode,
)
from apportion.runtime.process.clock import rfc3339_of
from apportion_schemas import Device, DevicesRegistered, Host, NodeReported

TYPES_MAX: Final = 20  # each is a replay
DEVICES: Final = 8  # of a node whose model is only in the price file, in an empty fleet
DIGITS: Final = 6
TYPE_EXAMPLE: Final = "COUNTxMODEL, as in 8xH100-80GB"

Tell = Callable[[int, int], None]


class NodeType(NamedTuple):
    """A type of node to try: its name, and an example of it."""

    name: str
    node: SimulatedNode
    in_fleet: bool = False

    @property
    def models(self) -> list[str]:
        """Return the model of each device."""
        return [device.model for device in self.node.devices]


def named_types(specs: Iterable[str]) -> list[NodeType]:
    """Return the types that the user names, such as `8xH100-80GB`. Raises WishInvalid."""
    found = []
    for spec in dict.fromkeys(specs):
        try:
            found.append(_simulated(spec, spec))
        except SimulationInvalid as error:
            raise WishInvalid("node", f"--node: {error}", f"write {TYPE_EXAMPLE}") from None
    return _limited(found)


def known_types(recorded: Recorded, prices: Prices | None) -> list[NodeType]:
    """Return the types of the fleet, then a node of each other model that has a price of its own.

    Types differ in the number of devices of a model, their memory and their mode. A model that only
    the price file names has as many devices as most nodes of the fleet. A price for a pattern of
    models adds no type. Raises WishInvalid if there are more than TYPES_MAX."""
    found: dict[str, NodeType] = {}
    size_of: dict[str, int] = {}
    for name, devices, host in _fleet(recorded):
        if devices:
            kinds = Counter((each.model, each.memory_mib, each.mode) for each in devices)
            models_of = Counter(model for model, _, _ in kinds)
            title = " + ".join(
                f"{many} x {model}"
                + (f" ({memory_mib:,} MiB, {mode})" if models_of[model] > 1 else "")
                for (model, memory_mib, mode), many in sorted(kinds.items())
            )
            size_of[name] = len(devices)
            found.setdefault(
                title, NodeType(title, SimulatedNode(name, devices, host), in_fleet=True)
            )
    in_fleet = {model for each in found.values() for model in each.models}
    sizes = Counter(size_of.values())
    count = max(sizes, key=lambda size: (sizes[size], size), default=DEVICES)
    others = [
        _simulated(f"{count} x {model.model}", f"{count}x{short}")
        for short, model in models().items()
        if prices is not None and model.model in prices.models and model.model not in in_fleet
    ]
    return _limited([*(found[title] for title in sorted(found)), *others])


def _fleet(recorded: Recorded) -> Iterable[tuple[str, tuple[Device, ...], Host]]:
    for node in recorded.beginning().nodes.values():
        if node.present:
            yield node.name, tuple(held.device for held in node.devices if held.present), node.host
    for fact in recorded.facts:
        if isinstance(fact.data, NodeReported):
            yield fact.data.node, fact.data.devices, fact.data.host
        elif isinstance(fact.data, DevicesRegistered):
            yield fact.data.node, fact.data.devices, _host(len(fact.data.devices))


def _simulated(title: str, spec: str) -> NodeType:
    devices = simulated_devices("added", spec)
    return NodeType(title, SimulatedNode("added", devices, _host(len(devices))))


def _host(devices: int) -> Host:
    return Host(
        cpu_milli=CPU_MILLI_PER_DEVICE * devices, memory_mib=MEMORY_MIB_PER_DEVICE * devices
    )


def _limited(found: list[NodeType]) -> list[NodeType]:
    if len(found) > TYPES_MAX:
        names = listed([each.name for each in found])
        problem = f"{len(found)} types of node are too many to try: {names}"
        raise WishInvalid("node", problem, f"name up to {TYPES_MAX} of them with --node")
    return found


def capacity(
    recorded: Recorded, types: Sequence[NodeType], prices: Prices | None = None, *, count: int = 1,
    tell: Tell = lambda _, __: None,
) -> CapacityAnswer:  # fmt: skip
    """Replay the span without and with `count` nodes of each type; the best value is first.

    `tell` is called with two numbers: events replayed so far, and events of all replays. Without
    pending pods, no type is tried. A type whose model has no price has no cost. Raises
    CourseFailed."""

    def reported(number: int) -> Tell:
        return lambda done, of: tell(number * of + done, (len(types) + 1) * of)

    names = {name for name, _, _ in _fleet(recorded)} | set(recorded.beginning().nodes)
    before = Replay(recorded, Otherwise(learns=True)).run(reported(0))
    begin_s = recorded.begin_s
    if not recorded.span.from_revision:  # there was no cluster before the first event
        begin_s = max(begin_s, next((fact.at_s for fact in recorded.facts), begin_s))
    hours = (recorded.end_s - begin_s) / HOUR_S
    unpriced = prices.lacking(m for each in types for m in each.models) if prices else ()
    rows = []
    for number, each in enumerate(types if before.gpu_hours_waited else (), 1):
        more = copies(each.node, count, names)
        after = Replay(recorded, Otherwise(more=more)).run(reported(number))
        cost = None
        if prices is not None and not set(unpriced) & set(each.models):
            cost = round(float(sum(map(prices.of, each.models))) * count * hours, DIGITS)
        saved = round(before.gpu_hours_waited - after.gpu_hours_waited, DIGITS) + 0.0
        row = CapacityRow(
            node=each.name,
            in_fleet=each.in_fleet,
            saved_gpu_hours=saved,
            waited_gpu_hours=after.gpu_hours_waited,
            wait_mean_s=after.wait_mean_s,
            wait_p95_s=after.wait_p95_s,
            unplaced=after.unplaced,
            cost=cost,
            saved_per_unit=float(f"{saved / cost:.{DIGITS}g}") if cost else None,
        )
        rows.append(row)
    return CapacityAnswer(
        start=rfc3339_of(begin_s),
        end=recorded.span.to_time,
        count=count,
        waited_gpu_hours=before.gpu_hours_waited,
        wait_mean_s=before.wait_mean_s,
        wait_p95_s=before.wait_p95_s,
        unplaced=before.unplaced,
        rows=tuple(sorted(rows, key=_worth)),
        currency=prices.currency if prices is not None else "",
        unpriced=unpriced,
    )


def _worth(row: CapacityRow) -> tuple[bool, float, float, str]:
    free = math.inf if row.cost == 0 and row.saved_gpu_hours > 0 else 0.0
    value = row.saved_per_unit if row.saved_per_unit is not None else free
    return row.cost is None, -value, -row.saved_gpu_hours, row.node


def copies(
    node: SimulatedNode, count: int, names: Collection[str] = ()
) -> tuple[SimulatedNode, ...]:
    """Return nodes like this one, with healthy devices, and names that are not among `names`."""
    found = []
    for number in range(1, count + 1):
        name = f"added-{number}"
        while name in names:
            name += "-more"
        ids = {each.id: f"{name}-{each.index}" for each in node.devices}
        devices = []
        for each in node.devices:
            lanes = {ids[peer]: much for peer, much in each.nvlink_lanes.items() if peer in ids}
            whole = structs.replace(
                each, id=ids[each.id], nvlink_lanes=lanes, healthy=True, health_reason="",
                closed_slices=0,
            )  # fmt: skip
            devices.append(whole)
        found.append(SimulatedNode(name, tuple(devices), node.host))
    return tuple(found)
