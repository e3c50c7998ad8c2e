"""Apply the rules to one node: whether a pod fits there, and if not, what the node lacks.

A device is refused by the first rule that it fails, a node by the rule of the last device that it
would have needed. Relations to other pods, and containers that fit only alone, are left to the
engine. Invariant: a node fits here exactly if no filter of the index refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from apportion.core.devices.chains import chain
from apportion.core.devices.demand import Demand, Known, demand, largest_part
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.feasibility import (
    RANK,
    UNCUT,
    Verdict,
    refused_amount,
    refused_kind,
    refused_node,
)
from apportion.core.placement.feasibility.devices import DEVICE_RULES
from apportion.core.placement.feasibility.occupancy import Occupancy, empty_device, now
from apportion_schemas import Ask, Device, DeviceConstraints, RefusalCode, Shape

# an ask's demand on a device, or the rule that this device can never pass
Need = Demand | RefusalCode
_WHICH_DEVICE: Final = frozenset((RefusalCode.UUID_MISMATCH, RefusalCode.INDEX_MISMATCH))
# rules about what a device is, or which one; they have no amounts
_OF_KINDS: Final = frozenset(code for code, _ in DEVICE_RULES)
_NO_DEVICE: Final = RefusalCode.NO_SUCH_DEVICE


class Rules(NamedTuple):
    """Known MIG geometries; with `idle_only`, a device with any share is refused."""

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
    """Return the first rule that keeps a pod of this shape from the node, or None if it fits.

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
    """Like `feasibility`, for devices only; `place` is a position among these."""
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
    """Return the ask's demand on such a device, or the first rule that it can never pass."""
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
    """Return the rule that refuses the last device that the ask would need, or None if it fits.

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
