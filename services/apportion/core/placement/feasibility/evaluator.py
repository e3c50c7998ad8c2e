"""Check whether a pod fits a node: the filters in order, and the evaluator that applies them.

A filter returns the amounts needed and available, and passes if there is enough. A device is
refused by the first rule that it fails, a node by the rule of the last device that it would have
needed. `Occupancy` sets what is on the node: as it is, empty, without some pods, without a cordon;
the node itself is not changed, and amounts are released as the fold does. Relations to other pods,
and containers that fit only alone, are left to the engine. Invariant: a node fits here exactly if
no filter of the index refuses it; a property test compares the two."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from msgspec import structs

from apportion.core.devices.chains import chain
from apportion.core.devices.demand import Demand, Known, demand, largest_part
from apportion.core.devices.shares import DeviceState, release, template_cpu_of
from apportion.core.ledger.host_usage import release_host
from apportion.core.ledger.state import DEVICE_PLUGIN, NodeState, PodState, State
from apportion.core.placement.feasibility.amounts import AMOUNTS
from apportion.core.placement.feasibility.causes import CAUSES, OF_NEIGHBOURS, OF_NO_NODE, OF_PARTS
from apportion.core.placement.feasibility.devices import DEVICE_RULES
from apportion.core.placement.feasibility.nodes import FACT_FILTERS, NODE_FILTERS
from apportion_schemas import Ask, Device, DeviceConstraints, NodeObserved, RefusalCode, Shape

NO_PLACE: Final = -1


class Verdict(NamedTuple):
    """The reason why something does not fit; `place` is the position of the device at fault."""

    code: RefusalCode
    needed: int
    available: int
    place: int = NO_PLACE

    @property
    def order(self) -> tuple[int, float]:
        """Return a sort key, nearest first: last filter, then smallest relative shortage."""
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
    """Return the verdict of the first check with less available than needed, or None."""
    for code, check in checks:
        needed, available = check(wanted, there)
        if available < needed:
            return Verdict(code, needed, available)
    return None


def refused_node(shape: Shape, node: NodeState) -> Verdict | None:
    """Return the first node filter that the node does not pass, or None."""
    return first_lacking(NODE_FILTERS, shape, node)


def facts_beside(answered: Collection[RefusalCode]) -> bool:
    """Return True if any filter of cluster facts has a code that is not in `answered`."""
    return any(code not in answered for code, _ in FACT_FILTERS)


def facts_refusal(shape: Shape, node: NodeState) -> RefusalCode | None:
    """Return the first filter of cluster facts that the node does not pass, or None."""
    found = first_lacking(FACT_FILTERS, shape, node)
    return None if found is None else found.code


def refused_kind(ask: Ask, constraints: DeviceConstraints, device: Device) -> RefusalCode | None:
    """Return the first device rule that the device does not pass, or None."""
    for code, passes in DEVICE_RULES:
        if not passes(ask, constraints, device):
            return code
    return None


def refused_amount(demand: Demand, state: DeviceState) -> Verdict | None:
    """Return the first amount that the device does not have free, or None."""
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
    """Return the node in its current state."""
    return node


def empty(node: NodeState) -> NodeState:
    """Return the node as if empty: ready, without pods or cordons, and with a reporting agent."""
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
        silent="",
    )


def empty_device(device: Device) -> DeviceState:
    """Return the state of the device without shares and closed slices."""
    return DeviceState(
        device=structs.replace(device, closed_slices=0) if device.closed_slices else device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
    )


def mended(observed: NodeObserved) -> NodeObserved:
    """Return the observed node as ready and without pods of other schedulers."""
    return structs.replace(
        observed,
        ready=True,
        unschedulable=False,
        taints=tuple(each for each in observed.taints if each.key not in CONDITIONS),
        labels={key: value for key, value in observed.labels.items() if key != DEVICE_PLUGIN},
        unhealthy_indexes=(),
        unnamed_families=(),
        others=(),
    )


def without(pods: Iterable[PodState]) -> Occupancy:
    """Return the occupancy of a node as if these pods had ended."""
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
    """Return the occupancy without the one cordon that causes this refusal."""

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
    """Return the node without cordons and with all reported devices healthy."""
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
_OF_KINDS: Final = frozenset(code for code, _ in DEVICE_RULES)
_NO_DEVICE: Final = RefusalCode.NO_SUCH_DEVICE


class Rules(NamedTuple):
    """The MIG geometries in force; with `idle_only`, a device with any share is refused."""

    geometries: Known = ()
    idle_only: bool = False


PLAIN: Final = Rules()


def rules_of(state: State, shape: Shape) -> Rules:
    """Return the rules for pods of this shape in this cluster."""
    devices = chain(shape.device_policy or state.policy.device_policy)
    return Rules(state.configuration.nvidia.known_mig_geometries, devices.idle_only)


def feasibility(
    shape: Shape,
    node: NodeState,
    occupancy: Occupancy = now,
    rules: Rules = PLAIN,
    *,
    large_enough: bool = False,
) -> Verdict | None:
    """Return the first rule that keeps a pod of this shape from the node, or None if pods fit.

    With `large_enough`, devices too small even when empty are ignored, for advice."""
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
    """Apply `feasibility` to devices only; `place` is a position in `devices`."""
    for ask in shape.asks:
        needs = [need_of(ask, shape.devices, held.device, rules) for held in devices]
        places: Sequence[int] = range(len(devices))
        if large_enough:
            places = [at for at, _ in usable(ask, shape.devices, devices, rules)]
        refused = refused_ask(ask, devices, needs, rules.geometries, places)
        if refused is not None:
            return refused
    return None


def need_of(ask: Ask, constraints: DeviceConstraints, device: Device, rules: Rules) -> Need:
    """Return the ask's demand on such a device, or the rule that refuses it permanently."""
    refused = refused_kind(ask, constraints, device)
    if refused is not None and refused not in _WHICH_DEVICE:
        return refused
    found = demand(ask, device, rules.geometries)
    if not isinstance(found, Demand):
        return found if refused is None or RANK[found] < RANK[refused] else refused
    if refused is not None:
        return refused
    return found._replace(alone=True) if rules.idle_only else found


def usable(
    ask: Ask, constraints: DeviceConstraints, devices: Sequence[DeviceState], rules: Rules
) -> Iterator[tuple[int, Demand]]:
    """Yield position and demand of each device that could meet the ask when empty."""
    for at, held in enumerate(devices):
        need = need_of(ask, constraints, held.device, rules)
        if isinstance(need, Demand) and refused_amount(need, empty_device(held.device)) is None:
            yield at, need


def refused_ask(
    ask: Ask,
    devices: Sequence[DeviceState],
    needs: Sequence[Need],
    geometries: Known,
    places: Sequence[int],
) -> Verdict | None:
    """Return the rule that refuses the last device that the ask would need; None if the ask fits.

    `needs` has an entry for each device; `places` are the positions to consider."""
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
            amounts = largest_part(ask, held.device, geometries) if need in UNCUT else (1, 0)
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
