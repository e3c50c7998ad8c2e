"""The tree of queues: what their pods use, what each queue is entitled to, and whose turn it is.

A queue counts its pods and those of the queues below it. `entitlements` divides the capacity of the
cluster between the queues at the top, and what each of them gets between the queues below it.
Devices are measured in thousandths (`quotas.WORTH`).

Invariant: all of it follows from the state and the placements that the decision assumes."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.capacity import OF_CAPACITY, Capacity
from apportion.core.placement.limits.entitlements import UNLIMITED, Claim, Memory, Part, divide
from apportion.core.placement.limits.holdings import NOTHING, Holdings
from apportion.core.placement.limits.past import QueuesPast
from apportion.core.placement.limits.quotas import (
    CPU,
    MEMORY,
    MODEL,
    WORTH,
    Amount,
    Amounts,
    LimitExceeded,
    add,
)
from apportion.core.placement.limits.tree import OWN, ROOT, QueueTree
from apportion_schemas import (
    ConfigurationChanged,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodSubmitted,
    QueueObserved,
    QueueShortage,
    RefusalCode,
    Shape,
    Share,
)

# A queue's turn among its siblings: those within their entitlement come first, then those of higher
# priority, then the one that has the smallest part of its entitlement.
Turn = tuple[bool, int, float, str]


_NO_PART: Final = Part()
# The most frequent events. Without limits, they only change which pods there are to count.
_COUNTED_LATER: Final = frozenset((PodSubmitted, PodPlaced, PodGone))


class Queues(Holdings):
    """What the pods of each queue use, and what each queue may use."""

    def __init__(self, state: State) -> None:
        super().__init__(state, self._taken_by, quotas.at_least)
        self.active = False
        self._capacity = Capacity(state)
        self.past = QueuesPast(state, self._capacity)
        self._live: dict[str, tuple[str, Amounts]] = {}
        self._asked: dict[str, Counter[Amount]] = {}
        self._reserved: dict[Amount, Counter[str]] = {}  # by guarantees and use, below each queue
        self._entitled: dict[str, dict[Amount, Part]] | None = None
        self._as_of = self.past.counted  # of entitlements
        self._measured: frozenset[Amount] = frozenset()
        self._families: dict[str, set[Amount]] = {}  # of the models that a key names
        self._turns: dict[str, tuple[Turn, ...]] = {}
        self.owners: dict[str, str] = {}  # what `owner` returns for each queue with a limit
        self._learn()

    def account_of(self, pod: PodState) -> str:
        """Return the pod's queue; if the queue has children, the account for only its own pods."""
        return self._tree.account(queue_of(self._state, pod))

    def path_of(self, name: str) -> tuple[str, ...]:
        """Return the queue, then those above it, and then `ROOT`."""
        return self._tree.path_of(name)

    def owner(self, pod: PodState) -> str:
        """Return the queue whose pods one scheduler places together with this pod, or ""."""
        return self._tree.owner(queue_of(self._state, pod))

    def fences(self, pod: PodState) -> tuple[str, ...]:
        """Return the queues whose limits or entitlements the pod's placement depends on."""
        found: tuple[str, ...] = (ROOT,) if self._tree.entangled else ()
        if self._limits:
            path = self.path_of(queue_of(self._state, pod))
            found += tuple(name for name in path if name in self._limits and name not in found)
        return found

    @property
    def lends(self) -> bool:
        """Return True if any queue deserves an amount, which it may reclaim from other queues."""
        return self._tree.lends

    def activate(self) -> None:
        """Start counting what queues use."""
        if not self.active:
            self.active = True
            self.count_later(self._state.pods.values())

    def count_offers(self, nodes: int) -> bool:
        """Add up the capacity of at most `nodes` more nodes. Return True if none is left."""
        return self._capacity.count(nodes)

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a queue may have more room."""
        kind, pod = type(change.data), change.pod
        if kind in _COUNTED_LATER and pod is not None and self.active and not self.bounded:
            self.note(pod)
            return False
        freed = kind is QueueObserved or kind is ConfigurationChanged
        if freed:
            self._learn()
        if not self.active:
            return freed
        if change.node is not None and kind in OF_CAPACITY:
            self._capacity.touched[change.node.name] = change.node
            freed = freed or bool(self._reserved)
        if freed or (kind is PodPlaced and change.refused):
            self.note_freed()
            freed = True
        if kind is PodPlaced and self._tree.keeps_order:
            freed = True  # the pod behind it is next
        elif kind is PodGroupObserved:
            # A nominated node is kept from pods of other queues, and the gang's may be another now.
            freed = freed or self._tree.lends
            for each in self._state.groups[change.data.group].pods.values():
                freed |= self.note(each)
        return self.follow(change) or freed

    def count_pod(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a pod, or stop counting one that is gone. Return True if room was freed."""
        before = self._live.get(pod.uid)
        live = self._state.pods.get(pod.uid) is pod
        live = live and (pod.placement is not None or not pod.submitted.gates)
        name = self.account_of(pod) if live else ""
        if again or name != (before[0] if before is not None else ""):
            self._entitled = None
            if before is not None:
                del self._live[pod.uid]
                for each in self.path_of(before[0]):
                    add(self._asked[each], before[1], -1)
            if live:
                asked = self._capacity.estimate(pod)
                self._live[pod.uid] = (name, asked)
                for each in self.path_of(name):
                    add(self._asked.setdefault(each, Counter()), asked, 1)
        return super().count_pod(pod, undone=undone, again=again)

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
                    asked = self._asked.get(each, NOTHING).get(amount, 0)
                    if max(now, now - times * much) > asked:
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
        """Return True if a limit, or any queue's guarantee, may keep out pods of this queue."""
        return bool(self._reserved) or super().limited(name)

    def beyond(self, name: str, more: Amounts) -> LimitExceeded | None:
        """Return the first limit that the queue would exceed with `more`, or None.

        The guarantees of other queues are limits of this queue, even while they are not used."""
        exceeded = super().beyond(name, more)
        if exceeded is not None or not self._reserved:
            return exceeded
        self._refresh()
        for amount, inner in self._reserved.items():
            much = more.get(amount, 0)
            for each in self.path_of(name):
                if not much:
                    break
                have, most = inner[each], self._most(each, amount)
                if have + much > most:
                    resource, unit = self._tree.names[amount]
                    shortage = QueueShortage(
                        queue=name.removesuffix(OWN),
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
        """Return the queue's position among the queues; the lowest turn is next.

        The tuple begins with the positions of the queues above this one."""
        self.activate()
        self.count_all()
        divided = self._divided()
        name = self._tree.account(name)
        found = self._turns.get(name)
        if found is None:
            turns: list[Turn] = []
            for each in self.path_of(name)[-2::-1]:
                held, most = self._held.get(each, NOTHING), divided.get(each, {})
                ratio = 0.0
                for amount in self._measured:
                    have = held.get(amount, 0)
                    if have > 0:
                        part = most.get(amount, _NO_PART).entitled
                        ratio = max(ratio, have / part if part else float(UNLIMITED))
                turns.append((ratio >= 1, -self._tree.claims(each).priority, ratio, each))
            found = self._turns[name] = tuple(turns)
        return found

    def parts(self, name: str) -> dict[Amount, Part]:
        """Return what the queue is entitled to, by amount; empty for an unknown queue."""
        self.activate()
        self.count_all()
        return self._divided().get(name, {})

    def used(self, name: str) -> Amounts:
        """Return what the pods of the queue, and of those below it, have allocated."""
        self.count_all()
        return self._held.get(name, NOTHING)

    def asked(self, name: str) -> Amounts:
        """Return what the pods of the queue need, whether they are running or pending."""
        self.count_all()
        return self._asked.get(name, NOTHING)

    def taken(self, pod: PodState) -> Amounts:
        """Return what a placed pod has allocated; nothing for other pods."""
        self.count_all()
        found = self._at.get(pod.uid)
        return NOTHING if found is None else found[2]

    def needs(self, pod: PodState) -> Amounts:
        """Return what the pod would take on devices of average size."""
        self.count_all()
        self._refresh()
        return self._capacity.estimate(pod)

    def all_named(self) -> list[Amount]:
        """Return the resources that any queue's `guarantee`, `deserved` or `capability` names.

        Resources that the cluster does not have are left out."""
        return [each for each in self._tree.names if each in self._measured]

    def named(self, name: str) -> tuple[Amount, ...]:
        """Return the resources for which the queue declares `deserved`."""
        return tuple(self._tree.claims(name).deserved)

    def _refresh(self) -> None:
        # Update what follows from the capacity of the cluster.
        if not self._capacity.refresh():
            return
        self._entitled = None
        self._turns.clear()
        capacity = self._capacity
        known = [amount for amount in self._tree.names if capacity.total(amount)]
        self._measured = frozenset((CPU, MEMORY, *capacity.device_amounts(), *known))
        self._families = {key: capacity.families_of(key) for key in self._tree.models}
        self._asked.clear()
        for uid, (name, _) in self._live.items():
            asked = self._capacity.estimate(self._state.pods[uid])
            self._live[uid] = (name, asked)
            for each in self.path_of(name):
                self._asked.setdefault(each, Counter()).update(asked)

    def _divided(self) -> dict[str, dict[Amount, Part]]:
        self._refresh()
        if self._state.past_use is not None:
            self.past.count()
        if self._entitled is not None and self._as_of == self.past.counted:
            return self._entitled
        self._turns.clear()
        self._as_of = self.past.counted
        found = self._entitled = self._divide(None)
        memory = self.past.memory
        if memory is not None:
            for name, parts in self._divide(memory).items():
                for amount, part in parts.items():
                    plain = found[name][amount]
                    found[name][amount] = plain._replace(
                        entitled=part.entitled, plain=plain.entitled
                    )
        return found

    def _divide(self, memory: Memory | None) -> dict[str, dict[Amount, Part]]:
        found = {ROOT: {each: Part(self._capacity.total(each)) for each in self._measured}}
        parents = [ROOT]
        while parents:
            parent = parents.pop()
            below = self.below(parent)
            found.update((name, {}) for name in below)
            for amount in self._measured:
                claims = [self._claim(name, amount) for name in below]
                parts = divide(found[parent][amount], claims, memory)
                for name, part in zip(below, parts, strict=True):
                    found[name][amount] = part
            parents += [name for name in below if name in self._tree.children]
        return found

    def below(self, parent: str) -> list[str]:
        """Return the children of a queue, and the account for the queue's own pods."""
        names = set(self._tree.children.get(parent, ()))
        if parent == ROOT:
            names.update(name for name in self._asked if self.path_of(name)[1:] == (ROOT,))
            names.discard(ROOT)
        elif parent + OWN in self._asked:
            names.add(parent + OWN)
        return sorted(names)

    def _claim(self, name: str, amount: Amount) -> Claim:
        said = self._tree.claims(name)
        asked = self._asked.get(name, NOTHING).get(amount, 0)
        deserved = said.deserved.get(amount, 0)
        if self._families and amount[0] == WORTH:
            # A queue that deserves devices of some models deserves as many of their family.
            named = ((each[1], much) for each, much in said.deserved.items() if each[0] == MODEL)
            deserved = max(
                deserved, sum(much for key, much in named if amount in self._families[key])
            )
        return Claim(
            asked=max(asked, self._held.get(name, NOTHING).get(amount, 0)),
            guarantee=said.guarantee.get(amount, 0),
            deserved=deserved,
            limit=said.limit.get(amount, UNLIMITED),
            weight=said.weight,
            priority=said.priority,
            past=self.past.of(name, amount),
        )

    def _guarantee(self, name: str, amount: Amount) -> int:
        return self._tree.claims(name).guarantee.get(amount, 0)

    def _most(self, name: str, amount: Amount) -> int:
        limit = self._tree.claims(name).limit.get(amount, UNLIMITED)
        # Without a total, what the cluster has of it is not counted, as of pods.
        return min(limit, self._capacity.total(amount) or limit) if name == ROOT else limit

    def _taken_by(self, shape: Shape, shares: Sequence[Share], node: NodeState) -> Amounts:
        return quotas.by_model(quotas.of_shares(shape, shares, node), self._tree.models)

    def _learn(self) -> None:
        # Read all queues and count all pods again: queues are few and change rarely.
        self._tree = QueueTree(self._state.queues, self._state.configuration)
        self._limits = {name: (quota,) for name, quota in self._tree.limits.items()}
        self._reserved = dict(self._tree.floors)
        self.bounded = bool(self._limits or self._reserved or self._tree.keeps_order)
        named = ("", *self._state.queues)  # any queue that does not exist is like the one named ""
        self.owners = {name: owner for name in named if (owner := self._tree.owner(name))}
        self._at, self._held, self._live, self._asked = {}, {}, {}, {}
        self.past.follow(self._tree)
        self._capacity.models = self._tree.models
        self._capacity.moved = True
        tree = self._tree
        if self.active or tree.limits or tree.floors or tree.lends or tree.keeps_order:
            self.active = True
            self.count_later(self._state.pods.values())
