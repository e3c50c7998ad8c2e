"""The tree of queues: what their pods use, what each queue is entitled to, and whose turn it is.

A queue counts its pods and those of the queues below it. `entitlements` divides the capacity of the
cluster between the queues at the top, and what each of them gets between the queues below it.
Devices are measured in thousandths (`quotas.WORTH`).

Invariant: all of it follows from the state and the placements that the decision assumes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from apportion.core.devices.catalogue import type_matches
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.entitlements import UNLIMITED, Claim, Part, divide
from apportion.core.placement.limits.holdings import NOTHING, OFFERS, Holdings
from apportion.core.placement.limits.quotas import (
    CPU,
    DEVICE,
    MEMORY,
    WORTH,
    Amount,
    Amounts,
    LimitExceeded,
    Quota,
)
from apportion.core.workloads.dialects.dialect import CORES, DEVICE_MEMORY, SHARES
from apportion.core.workloads.dialects.names import DialectConfig, dialect_config
from apportion_schemas import (
    Ask,
    ConfigurationChanged,
    PodGroupObserved,
    PodPlaced,
    QueueObserved,
    QueueShortage,
    RefusalCode,
    Shape,
    Share,
)
from apportion_schemas.quantities import WHOLE

ROOT: Final = "root"  # Volcano's name of the queue above all others
MODEL: Final = "model"  # an amount: devices of the models that a key of a card quota names
_OWN: Final = "/"  # behind the name of a queue with queues below it: its own pods

# A queue's turn among its siblings: those within their entitlement come first, then those of higher
# priority, then the one that has the smallest part of its entitlement.
Turn = tuple[bool, int, float, str]


class _Claims(NamedTuple):
    """What a queue says about the amounts of entitlements."""

    guarantee: dict[Amount, int]
    deserved: dict[Amount, int]
    limit: dict[Amount, int]
    weight: int
    priority: int


_NO_PART: Final = Part()
_PLAIN: Final = _Claims({}, {}, {}, 1, 0)  # of a queue that does not exist, and of a queue's pods


class Queues(Holdings):
    """What the pods of each queue use, and what each queue may use."""

    def __init__(self, state: State) -> None:
        super().__init__(state, self._taken_by, quotas.at_least)
        self.active = False
        self.lends = False  # a queue deserves something, and so may take it back
        self._totals = _Totals(state)
        self._paths: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, list[str]] = {}
        self._claims: dict[str, _Claims] = {}
        self._names: dict[Amount, tuple[str, int]] = {}  # name and unit of each amount in a claim
        self._models: tuple[str, ...] = ()
        self._live: dict[str, tuple[str, Amounts]] = {}
        self._asked: dict[str, Counter[Amount]] = {}
        self._estimates: dict[bytes, Amounts] = {}
        self._reserved: dict[Amount, Counter[str]] = {}  # by guarantees and use, below each queue
        self._entitled: dict[str, dict[Amount, Part]] | None = None
        self._measured: frozenset[Amount] = frozenset()
        self._families: set[tuple[Amount, str]] = set()  # of the models that a key names
        self._turns: dict[str, tuple[Turn, ...]] = {}
        self._learn()

    def account_of(self, pod: PodState) -> str:
        """Return the queue of the pod, or the part of it that counts the queue's own pods."""
        name = queue_of(self._state, pod)
        return name + _OWN if name in self._children else name

    def path_of(self, name: str) -> tuple[str, ...]:
        """Return the queue, then those above it, and then `ROOT`."""
        path = self._paths.get(name)
        if path is None:  # there is no such queue
            queue = name.removesuffix(_OWN)
            path = (
                (ROOT,) if name == ROOT else (name, ROOT) if queue == name else (name, queue, ROOT)
            )
        return path

    def activate(self) -> None:
        """Start counting what queues use."""
        if not self.active:
            self.active = True
            self._uncounted = list(self._state.pods.values())

    def count_offers(self, nodes: int) -> bool:
        """Add up the capacity of at most `nodes` more nodes. Return True if none is left."""
        return self._totals.count(nodes)

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a queue may have more room."""
        data = change.data
        freed = isinstance(data, QueueObserved | ConfigurationChanged)
        if freed:
            self._learn()
        if not self.active:
            return freed
        if change.node is not None and isinstance(data, OFFERS):
            self._totals.touched[change.node.name] = change.node
            freed = freed or bool(self._reserved)
        if freed or (change.refused and type(data) is PodPlaced):
            self.note_freed()
            freed = True
        freed |= self._ordered and type(data) is PodPlaced  # whoever is behind it is next
        if isinstance(data, PodGroupObserved):
            for pod in self._state.groups[data.group].pods.values():
                freed |= self.note(pod)
        return self.follow(change) or freed

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a pod, or stop counting one that is gone. Return True if room was freed."""
        before = self._live.get(pod.uid)
        live = self._state.pods.get(pod.uid) is pod and not pod.submitted.gates
        name = self.account_of(pod) if live else ""
        if again or name != (before[0] if before is not None else ""):
            self._entitled = None
            if before is not None:
                del self._live[pod.uid]
                for each in self.path_of(before[0]):
                    self._asked[each].subtract(before[1])
            if live:
                asked = self._estimate(pod)
                self._live[pod.uid] = (name, asked)
                for each in self.path_of(name):
                    self._asked.setdefault(each, Counter()).update(asked)
        return super().note(pod, undone=undone, again=again)

    def moved(self, name: str, amounts: Amounts, times: int) -> None:
        """Update what depends on the use of the queue and of those above it."""
        path = self.path_of(name)
        if len(path) > 2:  # noqa: PLR2004 - its siblings' turns include that of their parent
            self._turns.clear()
        else:
            self._turns.pop(name, None)
        for amount, much in amounts.items():
            if self._entitled is not None and amount in self._measured:
                for each in path:
                    now = self._held[each][amount]
                    if max(now, now - times * much) > self._asked[each][amount]:
                        self._entitled = None  # what it asks for is at least what it has
                        break
            inner = self._reserved.get(amount)
            if inner is not None:
                more = times * much
                for each in path:
                    kept, had = self._guarantee(each, amount), inner[each]
                    inner[each] += more
                    more = max(inner[each], kept) - max(had, kept)

    def limited(self, name: str) -> bool:
        """Return True if a limit, or a guarantee of any queue, may keep out pods of this queue."""
        return bool(self._reserved) or super().limited(name)

    def beyond(self, name: str, more: Amounts) -> LimitExceeded | None:
        """Return the first limit that the queue would exceed with `more`, or None.

        What other queues are guaranteed is a limit too, whether or not they use it."""
        exceeded = super().beyond(name, more)
        if exceeded is not None or not self._reserved:
            return exceeded
        self._refresh()
        for amount, inner in self._reserved.items():
            much = more.get(amount, 0)
            for each in self.path_of(name):
                if not much:
                    break
                have, kept, most = (
                    inner[each],
                    self._guarantee(each, amount),
                    self._most(each, amount),
                )
                if have + much > most:
                    resource, unit = self._names[amount]
                    shortage = QueueShortage(
                        queue=name.removesuffix(_OWN),
                        resource=resource,
                        needed=-(-more[amount] // unit),
                        available=max(more[amount] - have - much + most, 0) // unit,
                        reserved=True,
                    )
                    return LimitExceeded(RefusalCode.QUEUE_RESERVED, queue=shortage)
                kept = self._guarantee(each, amount)
                much = max(have + much, kept) - max(have, kept)
        return None

    def turn(self, name: str) -> tuple[Turn, ...]:
        """Return the turn of a queue, after those of the queues above it; the lowest is next."""
        self.activate()
        self.count_all()
        divided = self._divided()
        name = name + _OWN if name in self._children else name
        found = self._turns.get(name)
        if found is None:
            path = self.path_of(name)[-2::-1]
            found = self._turns[name] = tuple(self._turn_of(each, divided) for each in path)
        return found

    def parts(self, name: str) -> dict[Amount, Part]:
        """Return what the queue is entitled to, by amount; empty for an unknown queue."""
        self.activate()
        self.count_all()
        return self._divided().get(name, {})

    def used(self, name: str) -> Amounts:
        """Return what the pods of the queue, and of those below it, have allocated."""
        return self._held.get(name, NOTHING)

    def asked(self, name: str) -> Amounts:
        """Return what the pods of the queue need, whether they are running or pending."""
        return self._asked.get(name, NOTHING)

    def taken(self, pod: PodState) -> Amounts:
        """Return what a placed pod has allocated; nothing for other pods."""
        found = self._at.get(pod.uid)
        return NOTHING if found is None else found[2]

    def needs(self, pod: PodState) -> Amounts:
        """Return what the pod would take on devices of average size."""
        self.count_all()
        self._refresh()
        return self._estimate(pod)

    def named(self, name: str) -> tuple[Amount, ...]:
        """Return the amounts of which the queue says what it deserves."""
        return tuple(self._claims.get(name, _PLAIN).deserved)

    def _turn_of(self, name: str, divided: dict[str, dict[Amount, Part]]) -> Turn:
        held, most = self._held.get(name, NOTHING), divided.get(name, {})
        ratio = 0.0
        for amount in self._measured:
            have = held.get(amount, 0)
            if have > 0:
                part = most.get(amount, _NO_PART).entitled
                ratio = max(ratio, have / part if part else float(UNLIMITED))
        return ratio >= 1, -self._claims.get(name, _PLAIN).priority, ratio, name

    def _refresh(self) -> None:
        # Update what follows from the capacity of the cluster.
        if not self._totals.refresh():
            return
        self._entitled = None
        self._turns.clear()
        known = [amount for amount in self._names if self._total(amount)]
        families = [each for each in self._totals.sum if each[0] == WORTH and len(each) == 2]  # noqa: PLR2004 - without a model
        self._measured = frozenset((CPU, MEMORY, *families, *known))
        self._families = {
            (each[:2], key)
            for key in self._models
            for each in self._totals.sum
            if each[0] == WORTH and len(each) > 2 and type_matches(key, each[2])  # noqa: PLR2004 - with a model
        }
        self._estimates.clear()
        self._asked.clear()
        for uid, (name, _) in self._live.items():
            asked = self._estimate(self._state.pods[uid])
            self._live[uid] = (name, asked)
            for each in self.path_of(name):
                self._asked.setdefault(each, Counter()).update(asked)

    def _divided(self) -> dict[str, dict[Amount, Part]]:
        self._refresh()
        if self._entitled is not None:
            return self._entitled
        self._turns.clear()
        found = self._entitled = {ROOT: {each: Part(self._total(each)) for each in self._measured}}
        parents = [ROOT]
        while parents:
            parent = parents.pop()
            below = self.below(parent)
            found.update((name, {}) for name in below)
            for amount in self._measured:
                claims = [self._claim(name, amount) for name in below]
                parts = divide(found[parent][amount].entitled, claims)
                for name, part in zip(below, parts, strict=True):
                    found[name][amount] = part
            parents += [name for name in below if name in self._children]
        return found

    def below(self, parent: str) -> list[str]:
        """Return the queues just below a queue, and the part that counts the queue's own pods."""
        names = set(self._children.get(parent, ()))
        if parent == ROOT:
            names.update(name for name in self._asked if self.path_of(name)[1:] == (ROOT,))
            names.discard(ROOT)
        elif parent + _OWN in self._asked:
            names.add(parent + _OWN)
        return sorted(names)

    def _claim(self, name: str, amount: Amount) -> Claim:
        said = self._claims.get(name, _PLAIN)
        asked = self._asked.get(name, NOTHING).get(amount, 0)
        return Claim(
            asked=max(asked, self._held.get(name, NOTHING).get(amount, 0)),
            guarantee=said.guarantee.get(amount, 0),
            deserved=max(said.deserved.get(amount, 0), self._of_models(said.deserved, amount)),
            limit=said.limit.get(amount, UNLIMITED),
            weight=said.weight,
            priority=said.priority,
        )

    def _of_models(self, deserved: dict[Amount, int], amount: Amount) -> int:
        # Who deserves devices of some models deserves as many devices of their family.
        if not self._models or amount[0] != WORTH:
            return 0
        named = ((each[1], much) for each, much in deserved.items() if each[0] == MODEL)
        return sum(much for key, much in named if (amount, key) in self._families)

    def _guarantee(self, name: str, amount: Amount) -> int:
        return self._claims.get(name, _PLAIN).guarantee.get(amount, 0)

    def _most(self, name: str, amount: Amount) -> int:
        limit = self._claims.get(name, _PLAIN).limit.get(amount, UNLIMITED)
        return min(limit, self._total(amount)) if name == ROOT else limit

    def _total(self, amount: Amount) -> int:
        if amount[0] != MODEL:
            return self._totals.sum[amount]
        return sum(
            much
            for each, much in self._totals.sum.items()
            if each[0] == WORTH and len(each) > 2 and type_matches(amount[1], each[2])  # noqa: PLR2004 - with a model
        )

    def _taken_by(self, shape: Shape, shares: Sequence[Share], node: NodeState) -> Amounts:
        taken = quotas.of_shares(shape, shares, node)
        if not self._models:
            return taken
        found = Counter(taken)
        for amount, much in taken.items():
            if amount[0] == WORTH and len(amount) > 2:  # noqa: PLR2004 - with a model
                for key in self._models:
                    if type_matches(key, amount[2]):
                        found[MODEL, key] += much
        return found

    def _estimate(self, pod: PodState) -> Amounts:
        # What a pod of this shape takes on devices of average size.
        found = self._estimates.get(pod.shape_key)
        if found is None:
            shape = pod.submitted.shape
            total, before = quotas.of_host(shape), Counter[Amount]()
            for ask in shape.asks:
                asked = self._totals.estimate(ask)
                wanted = shape.devices.use_types
                for key in self._models:
                    if not wanted or any(type_matches(each, key) for each in wanted):
                        asked[MODEL, key] += asked[WORTH, ask.family]
                if ask.init:
                    before |= asked
                else:
                    total.update(asked)
            found = self._estimates[pod.shape_key] = total | before
        return found

    def _learn(self) -> None:
        # Read all queues anew, and count all pods again: queues are few and change rarely.
        state, config = self._state, dialect_config(self._state.configuration)
        self._limits, self._claims, self._names = {}, {}, {}
        self._children, self._paths = {}, {}
        for name, queue in state.queues.items():
            quota = Quota(queue, state.configuration)
            if quota.limits:
                self._limits[name] = (quota,)
            self._claims[name] = _Claims(
                self._amounts(queue.guarantee, queue.cards_guarantee, config),
                self._amounts(queue.deserved, queue.cards_deserved, config),
                self._amounts(queue.capability, {}, config),
                queue.weight,
                queue.priority,
            )
        for name in state.queues:
            path = path_in(state.queues, name)
            self._paths[name] = path
            self._paths[name + _OWN] = (name + _OWN, *path)
            for below, above in pairwise(path):
                names = self._children.setdefault(above, [])
                if below not in names:
                    names.append(below)
        self._models = tuple(
            sorted(
                {
                    key
                    for each in state.queues.values()
                    for key in (*each.cards_guarantee, *each.cards_deserved)
                }
            )
        )
        self.lends = any(each.deserved for each in self._claims.values())
        guaranteed = {amount for each in self._claims.values() for amount in each.guarantee}
        self._reserved = {amount: self._floor(amount) for amount in sorted(guaranteed)}
        self._at, self._held, self._live, self._asked = {}, {}, {}, {}
        self._estimates.clear()
        self._totals.moved = True
        self._ordered = any(each.fifo for each in state.queues.values())
        if self.active or self._limits or self.lends or guaranteed or self._ordered:
            self.active = True
            self._uncounted = list(state.pods.values())

    def _amounts(
        self, named: dict[str, int], cards: dict[str, int], config: DialectConfig
    ) -> dict[Amount, int]:
        found: dict[Amount, int] = {}
        for name, much in named.items():
            amount, unit = quotas.entitling(name, config)
            self._names.setdefault(amount, (name, unit))
            found[amount] = min(much * unit, found.get(amount, UNLIMITED))
        for key, much in cards.items():
            self._names.setdefault((MODEL, key), (key, DEVICE))
            found[MODEL, key] = much * DEVICE
        return found

    def _floor(self, amount: Amount) -> Counter[str]:
        # What the queues below each queue are guaranteed, before any pod is counted.
        found = Counter[str]()
        for name in sorted(self._paths, key=lambda each: -len(self._paths[each])):
            path = self._paths[name]
            if name == path[0] and len(path) > 1:
                found[path[1]] += max(found[name], self._guarantee(name, amount))
        return found


def path_in(queues: Mapping[str, QueueObserved], name: str) -> tuple[str, ...]:
    """Return the queue, then those above it, and then `ROOT`.

    A queue in a circle, or below one, is at the top."""
    path = [name]
    while path[-1] != ROOT:
        queue = queues.get(path[-1])
        parent = (queue.parent if queue is not None else "") or ROOT
        if parent in path:
            return (name, ROOT)
        path.append(parent)
    return tuple(path)


class _Totals:
    """The capacity of the cluster, updated as nodes change."""

    def __init__(self, state: State) -> None:
        self.sum: Counter[Amount] = Counter()
        self.moved = False
        self.touched: dict[str, NodeState] = {}
        self._of: dict[str, Counter[Amount]] = {}
        self._state: State | None = state  # until its nodes are queued to be counted

    def refresh(self) -> bool:
        """Recount all changed nodes. Return True if the totals changed since the last call."""
        self.count(0)
        self.count(len(self.touched))
        moved, self.moved = self.moved, False
        return moved

    def count(self, nodes: int) -> bool:
        """Recount at most `nodes` changed nodes. Return True if none is left."""
        if self._state is not None:
            self.touched = dict(self._state.nodes)
            self._state = None
        for _ in range(min(nodes, len(self.touched))):
            name, node = self.touched.popitem()
            offered = _offered(node)
            if offered != self._of.get(name):
                self.sum.subtract(self._of.get(name, {}))
                self.sum.update(offered)
                self._of[name] = offered
                self.moved = True
        return not self.touched

    def estimate(self, ask: Ask) -> Counter[Amount]:
        """Return what an ask takes on devices of its family's average size."""
        family = ask.family
        count = max(self.sum[WORTH, family] // DEVICE, 1)
        size, cores = self.sum[DEVICE_MEMORY, family] // count, self.sum[CORES, family] // count
        slots = max(self.sum[SHARES, family] // count, 1)
        percent = WHOLE if ask.memory_percent is None else ask.memory_percent
        memory = size * percent // WHOLE if ask.memory_mib is None else ask.memory_mib
        own = WHOLE if ask.whole else ask.cores
        worth = max(-(-memory * DEVICE // max(size, 1)), own * DEVICE // WHOLE, -(-DEVICE // slots))
        return Counter(
            {
                (SHARES, family): ask.count,
                (WORTH, family): min(worth, DEVICE) * ask.count,
                (DEVICE_MEMORY, family): memory * ask.count,
                (CORES, family): cores * own // WHOLE * ask.count,
            }
        )


def _offered(node: NodeState) -> Counter[Amount]:
    offered: Counter[Amount] = Counter()
    if node.present:
        offered[CPU] = node.host.cpu_milli
        offered[MEMORY] = node.host.memory_mib
    for each in node.devices:
        device = each.device
        if node.present and each.present and each.healthy:
            offered[WORTH, device.family] += DEVICE
            offered[WORTH, device.family, device.model] += DEVICE
            offered[SHARES, device.family] += device.slots
            offered[DEVICE_MEMORY, device.family] += device.memory_mib
            offered[CORES, device.family] += device.cores
    return offered
