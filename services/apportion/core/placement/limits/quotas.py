"""What a queue or a namespace may hold, as limits of what shares are made of.

Limits name resources as pods do, in any dialect: the capability of a queue, `spec.hard` of a
ResourceQuota. A limit of device memory or cores binds whatever the pods hold of such devices, by
whichever names they asked, so that no dialect is a way around it. `volcano.sh/gpu-number` alone
counts entire cards only and `volcano.sh/gpu-memory` what is not an entire card, because the two
stand beside each other in Volcano.

Invariant: what a placement takes is worked out from its shares, so it is what the pod gets and not
what it wrote."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from apportion.core.devices.catalogue import normal, type_matches
from apportion.core.devices.demand import Demand
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.dialects.dialect import (
    CORES,
    COUNTED,
    DEVICE_MEMORY,
    ENTIRE,
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

Amount = tuple[str, ...]
"""What is counted: of the host, or of the devices of one family, of one model, or one profile."""
Amounts = Mapping[Amount, int]

CPU: Final = ("cpu",)
MEMORY: Final = ("memory",)
PODS: Final = ("pods",)
EXTENDED: Final = "extended"
_CARDS: Final = "cards"
_MPS: Final = "mps"
_OF_CLAIMS: Final = ("requests.", "limits.")
"""A ResourceQuota says it before a resource; a device is not had but by its limit."""


class Bound(NamedTuple):
    """The most of an amount, under the name that the limit gives it; one of that is `unit`."""

    resource: str
    amount: Amount
    most: int
    unit: int

    def needed(self, held: Amounts, more: Amounts) -> int:
        """How much of `more` is beyond it, beside what is held: all of it, or nothing."""
        much = more.get(self.amount, 0)
        return much if much and held.get(self.amount, 0) + much > self.most else 0


class LimitExceeded(NamedTuple):
    """Why a queue or a namespace may not take a pod."""

    code: RefusalCode
    queue: QueueShortage | None = None
    quota: QuotaShortage | None = None


class Quota:
    """What one queue may hold."""

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
        """Whether there is anything that the queue may not hold."""
        return bool(self._closed or self._bounds or self._cards)

    def exceeded(self, held: Amounts, more: Amounts) -> LimitExceeded | None:
        """Why a queue that holds so much may not take this much more; None if it may."""
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
        return self._cards_exceeded(held, more) if self._keys else None

    def _cards_exceeded(self, held: Amounts, more: Amounts) -> LimitExceeded | None:
        needed, have = self._by_card(more), self._by_card(held)
        for card, count in sorted(needed.items()):
            most = self._cards.get(card, 0)
            if have[card] + count > most:
                shortage = QueueShortage(
                    queue=self._name,
                    resource=card,
                    needed=count,
                    available=max(most - have[card], 0),
                )
                return LimitExceeded(RefusalCode.QUEUE_CARDS_EXCEEDED, queue=shortage)
        return None

    def _by_card(self, amounts: Amounts) -> Counter[str]:
        """Shares by the name that the quota gives their cards, or by model where it has none."""
        found: Counter[str] = Counter()
        for amount, count in amounts.items():
            if amount[0] == _CARDS:
                _, model, part = amount
                found[_card_named(self._keys, model, part) or model] += count
        return found


class NamespaceQuota:
    """What the pods of a namespace may hold of devices, by one ResourceQuota.

    The API server counts the rest of it, when a pod is created."""

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
        """Whether it says anything of devices."""
        return bool(self._bounds)

    def exceeded(self, held: Amounts, more: Amounts) -> LimitExceeded | None:
        """Why a namespace that holds so much may not take this much more; None if it may."""
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


def of_shares(shape: Shape, shares: Iterable[Share], node: NodeState) -> Amounts:
    """What a pod of this shape takes with these shares of the node."""
    taken = of_host(shape)
    taken.update(of_devices(shape, shares, node))
    return taken


def of_devices(shape: Shape, shares: Iterable[Share], node: NodeState) -> Counter[Amount]:
    """What these shares take of the node's devices at once: init containers run before the others,
    one after the other, so they add to an amount only what they alone need more of."""
    taken: Counter[Amount] = Counter()
    before: dict[str, Counter[Amount]] = {}
    for ask in shape.asks:
        if ask.init:
            before[ask.container] = Counter()
    for share in shares:
        device = node.by_id[share.device].device
        profile = share.instance.profile if share.instance is not None else ""
        part = before.get(share.container, taken)
        for amount, much in _of_share(device, share.memory_mib, share.cores, profile):
            part[amount] += much
    return _most(taken, before.values())


def of_demand(demand: Demand, device: Device, count: int) -> Amounts:
    """The least that so many shares of devices like this one take."""
    profile = demand.profile.name if demand.profile is not None else ""
    return {
        amount: much * count
        for amount, much in _of_share(device, demand.memory_mib, demand.cores, profile)
    }


def at_least(shape: Shape) -> Amounts:
    """What a pod of this shape takes on any node."""
    taken = of_host(shape)
    taken.update(devices_at_least(shape))
    return taken


def devices_at_least(shape: Shape) -> Counter[Amount]:
    """What a pod of this shape takes of devices on any node, at once: see `of_devices`."""
    taken: Counter[Amount] = Counter()
    before: dict[str, Counter[Amount]] = {}
    for ask in shape.asks:
        part = before.setdefault(ask.container, Counter()) if ask.init else taken
        part[SHARES, ask.family] += ask.count
        if ask.profile:
            part[INSTANCES, ask.profile] += ask.count
    return _most(taken, before.values())


def _most(taken: Counter[Amount], before: Iterable[Counter[Amount]]) -> Counter[Amount]:
    for each in before:
        taken |= each
    return taken


def of_host(shape: Shape) -> Counter[Amount]:
    """What a pod of this shape takes beside devices."""
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
) -> Iterator[tuple[Amount, int]]:
    family = device.family
    yield (SHARES, family), 1
    yield (DEVICE_MEMORY, family), memory_mib
    yield (CORES, family), cores
    if profile:
        yield (INSTANCES, profile), 1
        yield (_CARDS, device.model, f"mig-{profile}-mixed"), 1
    else:
        yield (_CARDS, device.model, _MPS if device.mode == "mps" else ""), 1
    if not profile and (memory_mib, cores) == (device.memory_mib, device.cores):
        yield (ENTIRE, family), 1
    else:
        yield (PARTIAL_MEMORY, family), memory_mib


@lru_cache(maxsize=4096)
def _card_named(keys: tuple[str, ...], model: str, part: str) -> str:
    """The key of a card quota that means a share of such a card; empty where none does.

    `MODEL/mig-PROFILE-mixed` and `MODEL/mps-…` are parts of a card and go before `MODEL`; a model's
    whole name goes before a part of it, as `A100` is."""
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
    """The amount that each resource name bounds, and how much of it one is."""
    of_devices = {
        name: ((bound.counts, bound.of), bound.unit)
        for name, resource in resources(config).items()
        if (bound := resource.bound) is not None
    }
    return {"cpu": (CPU, 1), "memory": (MEMORY, 1), "pods": (PODS, 1), **of_devices}
