"""Express the limits of queues and namespaces as upper bounds, and compute what a pod uses of each
limited resource.

A limit on device memory or cores applies to all devices of the family. Exceptions for Volcano:
`volcano.sh/gpu-number` counts only whole devices, `volcano.sh/gpu-memory` only partial ones.
Invariant: amounts are computed from what the pod gets, not from what it requested."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from apportion.core.devices.catalogue import counts_cores, normal, type_matches
from apportion.core.devices.demand import Demand
from apportion.core.devices.worth import DEVICE, most_at_once, worth_of
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.dialects.dialect import (
    CORES,
    CORES_PERCENT,
    COUNTED,
    DEVICE_MEMORY,
    ENTIRE,
    GPU_MILLI,
    INSTANCES,
    PARTIAL_MEMORY,
    SHARES,
)
from apportion.core.workloads.dialects.listing import resources
from apportion.core.workloads.dialects.names import DialectConfig, dialect_config
from apportion_schemas import (
    Configuration,
    Device,
    QueueObserved,
    QueueShortage,
    QuotaObserved,
    QuotaShortage,
    RefusalCode,
    Shape,
    Share,
)
from apportion_schemas.quantities import WHOLE

# what is counted: of the host, or of the devices of one family, model or MIG profile
Amount = tuple[str, ...]
Amounts = Mapping[Amount, int]

CPU: Final = ("cpu",)
MEMORY: Final = ("memory",)
PODS: Final = ("pods",)
EXTENDED: Final = "extended"
# Thousandths of devices of a family, or of one of its models, as in `devices.worth`.
WORTH: Final = "worth"
OF_MODEL: Final = 3  # the length of such an amount with a model
MODEL: Final = "model"  # the same for all models that a key of a card quota names
_CARDS: Final = "cards"
_MPS: Final = "mps"
# prefixes in a ResourceQuota; devices are only requested by their limits
_OF_CLAIMS: Final = ("requests.", "limits.")


class Bound(NamedTuple):
    """The maximum of one amount, as the limit of a queue or quota sets it."""

    resource: str
    amount: Amount
    most: int
    unit: int

    def needed(self, held: Amounts, more: Amounts) -> int:
        """Return the amount in `more` if `held` and `more` together exceed the bound; else 0."""
        much = more.get(self.amount, 0)
        return much if much and held.get(self.amount, 0) + much > self.most else 0


class LimitExceeded(NamedTuple):
    """The limit of a queue or namespace that a pod would exceed, and by how much."""

    code: RefusalCode
    queue: QueueShortage | None = None
    quota: QuotaShortage | None = None


class Quota:
    """The limits of one queue, as bounds on amounts."""

    def __init__(self, queue: QueueObserved, configuration: Configuration) -> None:
        names = amounts_by_name(dialect_config(configuration))
        self._name = queue.queue
        self._closed = not queue.open
        self._cards = queue.cards
        self._keys = tuple(sorted(queue.cards))
        self._bounds = []
        for resource, most in sorted(queue.capability.items()):
            amount, unit = names.get(resource, ((EXTENDED, resource), 1))
            self._bounds.append(Bound(resource, amount, most * unit, unit))

    @property
    def limits(self) -> bool:
        """Return True if the queue has any limit."""
        return bool(self._closed or self._bounds or self._cards)

    def exceeded(self, held: Amounts, more: Amounts) -> LimitExceeded | None:
        """Return the first limit that `held` and `more` together exceed, or None."""
        if self._closed:
            return LimitExceeded(RefusalCode.QUEUE_CLOSED, queue=QueueShortage(queue=self._name))
        for bound in self._bounds:
            needed = bound.needed(held, more)
            if needed:
                left = max(bound.most - held.get(bound.amount, 0), 0)
                shortage = QueueShortage(
                    queue=self._name,
                    resource=bound.resource,
                    needed=_ceil(needed, bound.unit),
                    available=left // bound.unit,
                )
                return LimitExceeded(RefusalCode.QUEUE_CAPABILITY_EXCEEDED, queue=shortage)
        needed_cards, have = self._by_card(more), self._by_card(held)
        for card, count in sorted(needed_cards.items()):
            most = self._cards.get(card, 0)
            if have[card] + count > most:
                left = max(most - have[card], 0)
                shortage = QueueShortage(
                    queue=self._name, resource=card, needed=count, available=left
                )
                return LimitExceeded(RefusalCode.QUEUE_CARDS_EXCEEDED, queue=shortage)
        return None

    def _by_card(self, amounts: Amounts) -> Counter[str]:
        # Shares by the quota's key for their device, or by model if it has none.
        found: Counter[str] = Counter()
        for amount, count in amounts.items() if self._keys else ():
            if amount[0] == _CARDS:
                _, model, part = amount
                found[_card_named(self._keys, model, part) or model] += count
        return found


class NamespaceQuota:
    """The device limits of one ResourceQuota; the API server enforces its other limits."""

    def __init__(self, quota: QuotaObserved, configuration: Configuration) -> None:
        names = amounts_by_name(dialect_config(configuration))
        self._name = quota.quota
        self._bounds = []
        for resource, most in sorted(quota.hard.items()):
            claimed = resource
            for prefix in _OF_CLAIMS:
                claimed = claimed.removeprefix(prefix)
            amount, unit = names.get(claimed, (PODS, 1))
            if amount[0] in COUNTED:
                self._bounds.append(Bound(resource, amount, most * unit, unit))

    @property
    def limits(self) -> bool:
        """Return True if the quota limits devices."""
        return bool(self._bounds)

    def exceeded(self, held: Amounts, more: Amounts) -> LimitExceeded | None:
        """Return the first limit that `held` and `more` together exceed, or None."""
        for bound in self._bounds:
            needed = bound.needed(held, more)
            if needed:
                shortage = QuotaShortage(
                    quota=self._name,
                    resource=bound.resource,
                    needed=_ceil(needed, bound.unit),
                    used=_ceil(held.get(bound.amount, 0), bound.unit),
                    most=bound.most // bound.unit,
                )
                return LimitExceeded(RefusalCode.QUOTA_EXCEEDED, quota=shortage)
        return None


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def add(into: dict[Amount, int], amounts: Amounts, times: int) -> None:
    """Add `times` x `amounts`. `Counter.update` and `subtract` take several times as long."""
    for amount, much in amounts.items():
        into[amount] = into.get(amount, 0) + times * much


def of_shares(shape: Shape, shares: Iterable[Share], node: NodeState) -> Amounts:
    """Return the host and device amounts that a pod of this shape uses with these shares."""
    taken = of_host(shape)
    add(taken, of_devices(shape, shares, node), 1)
    return taken


def by_model(taken: Amounts, keys: Sequence[str]) -> Amounts:
    """Add to `taken` what of it each key of a card quota names."""
    if not keys:
        return taken
    found = Counter(taken)
    for key in keys:
        for amount, much in taken.items():
            if amount[0] == WORTH and len(amount) == OF_MODEL and type_matches(key, amount[2]):
                found[MODEL, key] += much
    return found


def of_devices(shape: Shape, shares: Iterable[Share], node: NodeState) -> Counter[Amount]:
    """Return the peak device usage of these shares; init containers run before the others."""

    def of_share(share: Share) -> Iterable[tuple[Amount, int]]:
        profile = share.instance.profile if share.instance is not None else ""
        device = node.by_id[share.device].device
        return _of_share(device, share.memory_mib, share.cores, profile)

    return most_at_once(shape, shares, of_share)


def of_demand(demand: Demand, device: Device, count: int) -> Amounts:
    """Return the minimum amounts that `count` shares of this demand use on the device."""
    profile = demand.profile.name if demand.profile is not None else ""
    return {
        amount: much * count
        for amount, much in _of_share(device, demand.memory_mib, demand.cores, profile)
    }


def at_least(shape: Shape) -> Amounts:
    """Return the amounts that a pod of this shape uses at least, on any node."""
    taken = of_host(shape)
    taken.update(devices_at_least(shape))
    return taken


def devices_at_least(shape: Shape) -> Counter[Amount]:
    """Return the device amounts that a pod of this shape uses at least, on any node."""
    taken: Counter[Amount] = Counter()
    before: dict[str, Counter[Amount]] = {}
    for ask in shape.asks:
        part = before.setdefault(ask.container, Counter()) if ask.init else taken
        part[SHARES, ask.family] += ask.count
        if ask.profile:
            part[INSTANCES, ask.profile] += ask.count
    for each in before.values():
        taken |= each
    return taken


def of_host(shape: Shape) -> Counter[Amount]:
    """Return the amounts other than devices that a pod of this shape uses."""
    needs = shape.node
    taken: Counter[Amount] = Counter({PODS: 1})
    if needs.cpu_milli:
        taken[CPU] = needs.cpu_milli
    if needs.memory_mib:
        taken[MEMORY] = needs.memory_mib
    for name, much in needs.extended.items():
        taken[EXTENDED, name] = much
    return taken


def _of_share(
    device: Device, memory_mib: int, cores: int, profile: str
) -> Iterable[tuple[Amount, int]]:
    kind = device.family, device.model, device.mode, device.memory_mib, device.cores
    return _amounts(kind, worth_of(device, memory_mib, cores), memory_mib, cores, profile)


@lru_cache(maxsize=16_384)
def _amounts(
    kind: tuple[str, str, str, int, int], worth: int, memory_mib: int, cores: int, profile: str
) -> tuple[tuple[Amount, int], ...]:
    # What one share takes of a device of this kind.
    family, model, mode, all_mib, all_cores = kind
    found: list[tuple[Amount, int]] = [
        ((SHARES, family), 1),
        ((WORTH, family), worth),
        ((WORTH, family, model), worth),
        ((DEVICE_MEMORY, family), memory_mib),
        ((CORES, family), cores),
    ]
    if counts_cores(family):
        found.append(((CORES_PERCENT, family), -(-cores * WHOLE // max(all_cores, 1))))
    if profile:
        found += [((INSTANCES, profile), 1), ((_CARDS, model, f"mig-{profile}-mixed"), 1)]
    else:
        found.append(((_CARDS, model, _MPS if mode == "mps" else ""), 1))
    if not profile and (memory_mib, cores) == (all_mib, all_cores):
        found.append(((ENTIRE, family), 1))
    else:
        found.append(((PARTIAL_MEMORY, family), memory_mib))
    return tuple(found)


@lru_cache(maxsize=4096)
def _card_named(keys: tuple[str, ...], model: str, part: str) -> str:
    """Return the most specific card quota for a device of this model, or an empty string.

    `MODEL/mig-PROFILE-mixed` and `MODEL/mps-…` take precedence over `MODEL`, and a full model name
    over a part of it, such as `A100`."""
    best = (False, False, 0, "")
    for key in keys:
        name, _, suffix = key.partition("/")
        exact = suffix == part or (part == _MPS and suffix.startswith("mps-"))
        if (exact or not suffix) and type_matches(name, model):
            whole = normal(name) == normal(model)
            best = max(best, (bool(suffix), whole, len(name), key))
    return best[-1]


@lru_cache(maxsize=8)
def amounts_by_name(config: DialectConfig) -> dict[str, tuple[Amount, int]]:
    """Return which amount each resource name limits, and in which unit."""
    of_devices = {
        name: ((bound.counts, bound.of), bound.unit)
        for name, resource in resources(config).items()
        if (bound := resource.bound) is not None
    }
    of_host = {"cpu": (CPU, 1), "memory": (MEMORY, 1), "pods": (PODS, 1)}
    return {**of_host, GPU_MILLI: ((WORTH, "nvidia"), 1), **of_devices}


def entitling(name: str, config: DialectConfig) -> tuple[Amount, int]:
    """Return the amount that a resource name counts in a queue, and its unit.

    This holds for the names in a queue's `guarantee`, `deserved` and `capability`."""
    amount, unit = amounts_by_name(config).get(name, ((EXTENDED, name), 1))
    if amount[0] in (SHARES, ENTIRE):
        return (WORTH, amount[1]), unit * DEVICE
    return amount, unit
