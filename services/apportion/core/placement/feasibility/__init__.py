"""The filters, in the order in which they are tried.

A filter returns the amounts needed and available, and passes if there is enough. The index
evaluates the same for all nodes at once; a property test compares the two."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from apportion.core.devices.demand import Demand
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState
from apportion.core.placement.feasibility.amounts import AMOUNTS
from apportion.core.placement.feasibility.causes import CAUSES, OF_NEIGHBOURS, OF_NO_NODE, OF_PARTS
from apportion.core.placement.feasibility.devices import DEVICE_RULES
from apportion.core.placement.feasibility.nodes import FACT_FILTERS, NODE_FILTERS
from apportion_schemas import Ask, Device, DeviceConstraints, RefusalCode, Shape

NO_PLACE: Final = -1


class Verdict(NamedTuple):
    """Why something does not fit; `place` is the position of the device that is the cause."""

    code: RefusalCode
    needed: int
    available: int
    place: int = NO_PLACE

    @property
    def order(self) -> tuple[int, float]:
        """Sort key, nearest first: the last filter, then the smallest relative shortage."""
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
    """Return True if there are filters of cluster facts other than those with these codes."""
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
