"""What a queue may hold: its capability and its card quota, as limits of what shares are made of.

A capability names resources as pods do, in any dialect. A limit of device memory or cores binds
whatever the queue's pods hold of such devices, by whichever names they asked, so that no dialect is
a way around it. `volcano.sh/gpu-number` alone counts entire cards only and `volcano.sh/gpu-memory`
what is not an entire card, because the two stand beside each other in Volcano.

Invariant: what a placement takes is worked out from its shares, so it is what the pod gets and not
what it wrote.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from apportion.core.configuration.resources import dialect_config
from apportion.core.devices.catalogue import normal, type_matches
from apportion.core.devices.demand import Demand
from apportion.core.dialects import cambricon, plain, vcuda, vgpu
from apportion.core.dialects.names import DialectConfig
from apportion.core.ledger.state import NodeState
from apportion_schemas import (
    Configuration,
    Device,
    QueueObserved,
    QueueShortage,
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
SHARES: Final = "shares"
DEVICE_MEMORY: Final = "device memory"
CORES: Final = "cores"
_ENTIRE: Final = "entire devices"
_PARTIAL_MEMORY: Final = "memory of partial shares"
_INSTANCES: Final = "instances"
_CARDS: Final = "cards"
_MPS: Final = "mps"


class Bound(NamedTuple):
    """The most of an amount, under the name that the queue gives it; one of that is `unit`."""

    resource: str
    amount: Amount
    most: int
    unit: int


class Lack(NamedTuple):
    """Why a queue may not take a pod."""

    code: RefusalCode
    shortage: QueueShortage


class Quota:
    """What one queue may hold."""

    def __init__(self, queue: QueueObserved, configuration: Configuration) -> None:
        names = _names(dialect_config(configuration))
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

    def lack(self, held: Amounts, more: Amounts) -> Lack | None:
        """Why a queue that holds so much may not take this much more; None if it may."""
        if self._closed:
            return Lack(RefusalCode.QUEUE_CLOSED, QueueShortage(queue=self._name))
        for bound in self._bounds:
            needed, have = more.get(bound.amount, 0), held.get(bound.amount, 0)
            if needed and have + needed > bound.most:
                shortage = QueueShortage(
                    queue=self._name,
                    resource=bound.resource,
                    needed=-(-needed // bound.unit),
                    available=max(bound.most - have, 0) // bound.unit,
                )
                return Lack(RefusalCode.QUEUE_CAPABILITY_EXCEEDED, shortage)
        return self._lack_of_cards(held, more) if self._keys else None

    def _lack_of_cards(self, held: Amounts, more: Amounts) -> Lack | None:
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
                return Lack(RefusalCode.QUEUE_CARDS_EXCEEDED, shortage)
        return None

    def _by_card(self, amounts: Amounts) -> Counter[str]:
        """Shares by the name that the quota gives their cards, or by model where it has none."""
        found: Counter[str] = Counter()
        for amount, count in amounts.items():
            if amount[0] == _CARDS:
                _, model, part = amount
                found[_card_named(self._keys, model, part) or model] += count
        return found


def of_shares(shape: Shape, shares: Iterable[Share], node: NodeState) -> Amounts:
    """What a pod of this shape takes with these shares of the node."""
    taken = of_host(shape)
    for share in shares:
        device = node.by_id[share.device].device
        profile = share.instance.profile if share.instance is not None else ""
        for amount, much in _of_share(device, share.memory_mib, share.cores, profile):
            taken[amount] += much
    return taken


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
    for ask in shape.asks:
        taken[SHARES, ask.family] += ask.count
        if ask.profile:
            taken[_INSTANCES, ask.profile] += ask.count
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
        yield (_INSTANCES, profile), 1
        yield (_CARDS, device.model, f"mig-{profile}-mixed"), 1
    else:
        yield (_CARDS, device.model, _MPS if device.mode == "mps" else ""), 1
    if not profile and (memory_mib, cores) == (device.memory_mib, device.cores):
        yield (_ENTIRE, family), 1
    else:
        yield (_PARTIAL_MEMORY, family), memory_mib


@lru_cache(maxsize=4096)
def _card_named(keys: tuple[str, ...], model: str, part: str) -> str:
    """The key of a card quota that means a share of such a card; empty where none does.

    `MODEL/mig-PROFILE-mixed` and `MODEL/mps-…` are parts of a card and go before `MODEL`; a model's
    whole name goes before a part of it, as `A100` is.
    """
    best = (False, False, 0, "")
    for key in keys:
        name, _, suffix = key.partition("/")
        exact = suffix == part or (part == _MPS and suffix.startswith("mps-"))
        if (exact or not suffix) and type_matches(name, model):
            whole = normal(name) == normal(model)
            best = max(best, (bool(suffix), whole, len(name), key))
    return best[-1]


@lru_cache(maxsize=8)
def _names(config: DialectConfig) -> dict[str, tuple[Amount, int]]:
    """The amount that each resource name bounds, and how much of it one is."""
    gpu, factor = vgpu.FAMILY, config.memory_factor
    found: dict[str, tuple[Amount, int]] = {"cpu": (CPU, 1), "memory": (MEMORY, 1)}
    found["pods"] = (PODS, 1)
    found[config.plain_count] = ((SHARES, gpu), 1)
    for names in (config.hami, config.volcano_vgpu):
        found |= _of_family(gpu, names.count, names.memory, names.cores, unit_mib=factor)
    for units in config.vcuda:
        found[units.cores] = ((CORES, gpu), 1)
        found[units.memory] = ((DEVICE_MEMORY, gpu), vcuda.UNIT_MIB)
    found[config.volcano_share.count] = ((_ENTIRE, gpu), 1)
    found[config.volcano_share.memory] = ((_PARTIAL_MEMORY, gpu), factor)
    mlu = config.cambricon
    unit = cambricon.UNIT_MIB
    found |= _of_family(cambricon.FAMILY, mlu.count, mlu.memory, mlu.cores, unit_mib=unit)
    for npu in config.ascend:
        named = _of_family(npu.family, npu.count, npu.memory, npu.cores, unit_mib=1)
        found |= named | {name.lower(): bound for name, bound in named.items()}
    if config.mig_by_profile:
        found |= {name: ((_INSTANCES, profile), 1) for name, profile in plain.PROFILES.items()}
    return found


def _of_family(
    family: str, count: str, memory: str, cores: str, *, unit_mib: int
) -> dict[str, tuple[Amount, int]]:
    return {
        count: ((SHARES, family), 1),
        memory: ((DEVICE_MEMORY, family), unit_mib),
        cores: ((CORES, family), 1),
    }
