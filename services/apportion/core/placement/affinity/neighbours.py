"""Count, for each node and label selector in use, the placed pods that the selector matches.

Topology spread ignores terminating pods, so its selectors have separate counts. Invariant: each
count equals that of a scan of all placed pods, so it can be rebuilt from the `State`."""

from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.index.columns import Columns
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import Neighbour, PodConstraints, PodSelector, PodSubmitted, PodTerm
from apportion_schemas.workload import NO_WISHES

# selectors counted at once; beyond, all are dropped and requested again
SELECTORS_MAX: Final = 4096
_encode = msgspec.json.Encoder(order="sorted").encode

KindKey = tuple[str, tuple[tuple[str, str], ...]]
_Counted = tuple[PodSelector, bool]  # a selector, and True if its count is for topology spread


class Counts:
    """The number of pods on each node that match one selector."""

    def __init__(self, clock: Iterator[int]) -> None:
        self.by_node: Counter[str] = Counter()
        self._clock = clock
        self.version = next(clock)
        self._rows = np.zeros(0, np.int64)
        self._generation = -1
        self._seen = 0
        self._stale: dict[str, None] = {}

    def add(self, node: str, amount: int) -> None:
        """Add `amount`, which may be negative, to the count of the node."""
        self.by_node[node] += amount
        if not self.by_node[node]:
            del self.by_node[node]
        self.version = next(self._clock)
        self._stale[node] = None

    def rows(self, columns: Columns) -> NDArray[np.int64]:
        """Return the number of matching pods on each node, in the row order of `columns`."""
        changed = columns.facts_changed.since(self._seen)
        self._seen = columns.facts_changed.end
        if self._generation != columns.generation or changed is None:
            self._generation = columns.generation
            self._rows = np.zeros(len(columns.names), np.int64)
            self._stale = dict.fromkeys(self.by_node)
        else:  # these rows may be other nodes now
            self._rows[changed] = [self.by_node[columns.names[row]] for row in changed.tolist()]
        for node in self._stale:
            if node in columns:  # else it was forgotten, with no pods
                self._rows[columns.row_of(node)] = self.by_node[node]
        self._stale.clear()
        return self._rows


class _Kind:
    """Placed pods that no selector can tell apart: same namespace, labels and terminating flag."""

    def __init__(self, key: KindKey, *, terminating: bool) -> None:
        self.key = (key, terminating)
        self.namespace, self.labels = key[0], dict(key[1])
        self.terminating = terminating
        self.by_node: Counter[str] = Counter()
        self.counts: list[Counts] = []


class Concern(NamedTuple):
    """The affinity and topology-spread rules that restrict one pod."""

    guards: tuple[PodTerm, ...]  # other pods' anti-affinity
    wishes: bool  # the pod has terms of its own
    itself: tuple[bool, ...]  # for each selector, whether it matches the pod itself


NAME_LABEL: Final = "kubernetes.io/metadata.name"
NO_CONCERN: Final = Concern((), wishes=False, itself=())


class Neighbours:
    """An index of the placed pods of all schedulers, for affinity and topology spread."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.active = False
        self.epoch = 0
        self._kinds: dict[tuple[KindKey, bool], _Kind] = {}
        self._at: dict[str, tuple[_Kind, str]] = {}
        self._matching: dict[_Counted, Counts] = {}
        self._guards: dict[PodTerm, Counts] = {}
        self._against: dict[KindKey, tuple[PodTerm, ...]] = {}
        self._clock = count(1)
        self._by_label = False  # True once any term selected namespaces by their labels
        self._uncounted: list[PodState | NodeState] = []
        self._others: dict[str, tuple[Neighbour, ...]] = {}
        mind = any(has_wishes(pod.submitted.shape.pods) for pod in state.pods.values())
        if mind or any(map(_keeps_away, state.nodes.values())):
            self._activate()

    def note(self, pod: PodState) -> bool:
        """Update the counts after a pod was placed or removed. Return True if a count changed."""
        if not self.active:
            if not has_wishes(pod.submitted.shape.pods):
                return False
            self._activate()
            return True
        at = pod.placement.node if pod.placement is not None else ""
        kind, was = self._at.pop(pod.uid, (None, ""))
        if kind is None:
            if not at:
                return False
            kind = self._kind(kind_of(pod.submitted), terminating=pod.terminating)
        if at:
            self._at[pod.uid] = (kind, at)
        if at == was:
            return False
        changed = False
        for node, amount in ((at, 1), (was, -1)):
            if node:
                changed |= self._count(kind, pod.submitted.shape.pods, node, amount)
        return changed

    def look_at(self, node: NodeState) -> bool:
        """Recount pods of other schedulers on this node. Return True if a count changed."""
        if not self.active:
            if not _keeps_away(node):
                return False
            self._activate()
            return True
        return self._count_others(node)

    def _count_others(self, node: NodeState) -> bool:
        before = self._others.pop(node.name, ())
        now = _others_of(node)
        if now:
            self._others[node.name] = now
        if before is now or before == now:
            return False
        changed = False
        for others, sign in ((before, -1), (now, 1)):
            for each in others:
                key = (each.namespace, tuple(sorted(each.labels.items())))
                kind = self._kind(key, terminating=each.terminating)
                wishes = PodConstraints(anti_affinity=each.anti_affinity)
                changed |= self._count(kind, wishes, node.name, sign * each.count)
        return changed

    def rename(self, pod: PodState) -> bool:
        """Recount a pod whose labels changed or that is terminating. True if a count changed."""
        at = self._at.get(pod.uid) if self.active else None
        if at is None:
            return False
        kind = self._kind(kind_of(pod.submitted), terminating=pod.terminating)
        if kind is at[0]:
            return False
        self._at[pod.uid] = (kind, at[1])
        changed = False
        for each, amount in ((at[0], -1), (kind, 1)):
            changed |= self._count(each, pod.submitted.shape.pods, at[1], amount)
        return changed

    def concern(self, pod: PodSubmitted) -> Concern:
        """Return the affinity and spread rules that restrict the pod."""
        if not self.active:
            return NO_CONCERN
        self.count(len(self._uncounted))
        guards: tuple[PodTerm, ...] = ()
        if self._guards:
            key = kind_of(pod)
            if key not in self._against:
                if len(self._against) >= SELECTORS_MAX:
                    self._against.clear()
                terms = (each for each in self._guards if self.selects(each.pods, pod))
                self._against[key] = tuple(sorted(terms, key=_encode))
            guards = self._against[key]
        wishes = pod.shape.pods
        if not has_wishes(wishes):
            return Concern(guards, wishes=False, itself=()) if guards else NO_CONCERN
        selectors = [t.pods for t in wishes.affinity] + [s.pods for s in wishes.spread]
        itself = tuple(self.selects(one, pod) for one in selectors)
        return Concern(guards, wishes=True, itself=itself)

    def counts(self, selector: PodSelector, *, spread: bool = False) -> Counts:
        """Return the number of placed pods on each node that the selector matches.

        With `spread`, omit terminating pods, like kube-scheduler's `countPodsMatchSelector`."""
        self.count(len(self._uncounted))
        found = self._matching.get((selector, spread))
        if found is None:
            # callers fetch their counts again when `epoch` changes
            if len(self._matching) >= SELECTORS_MAX:
                self.epoch += 1
                self._matching.clear()
                for kind in self._kinds.values():
                    kind.counts = []
            found = self._matching[selector, spread] = Counts(self._clock)
            self._by_label = self._by_label or bool(selector.by_label)
            for kind in self._kinds.values():
                if self._means((selector, spread), kind):
                    kind.counts.append(found)
                    for node, number in kind.by_node.items():
                        found.add(node, number)
        return found

    def selects(self, selector: PodSelector, pod: PodSubmitted) -> bool:
        """Return True if the selector matches this pod."""
        return self._selects(selector, pod.namespace, pod.labels)

    def owners(self, term: PodTerm) -> Counts:
        """Return how many placed pods on each node have this anti-affinity term."""
        return self._guards[term]

    def relabel(self, namespace: str) -> bool:
        """Recount after a namespace's labels changed. Return False if no term selects by them."""
        if not self._by_label:
            return False
        for key in [key for key in self._against if key[0] == namespace]:
            del self._against[key]
        labelled = [each for each in self._matching.items() if each[0][0].by_label]
        kinds = [kind for kind in self._kinds.values() if kind.namespace == namespace]
        for kind, (counted, counts) in product(kinds, labelled):
            means = self._means(counted, kind)
            if means == (counts in kind.counts):
                continue
            (kind.counts.append if means else kind.counts.remove)(counts)
            for node, number in kind.by_node.items():
                counts.add(node, number if means else -number)
        return True

    def _means(self, counted: _Counted, kind: _Kind) -> bool:
        selector, spread = counted
        if spread and kind.terminating:
            return False
        return self._selects(selector, kind.namespace, kind.labels)

    def _selects(self, selector: PodSelector, namespace: str, labels: dict[str, str]) -> bool:
        if namespace not in selector.namespaces:
            if selector.by_label:
                known = self._state.namespaces.get(namespace)
                # Every API server sets a namespace's name as one of its labels.
                own = {**(known.labels if known is not None else {}), NAME_LABEL: namespace}
                if not meet(own, selector.by_label):
                    return False
            elif selector.namespaces:
                return False
        return meet(labels, selector.expressions)

    def _activate(self) -> None:
        self.active = True
        self._uncounted = [*self._state.pods.values(), *self._state.nodes.values()]

    def count(self, some: int) -> bool:
        """Count at most `some` of the uncounted pods and nodes. Return True if none is left."""
        if not self._uncounted:
            return True
        for _ in range(min(some, len(self._uncounted))):
            each = self._uncounted.pop()
            if isinstance(each, NodeState):
                self._count_others(each)
            # a later pod may have the uid of a deleted one
            elif self._state.pods.get(each.uid) is each:
                self.note(each)
        return not self._uncounted

    def _kind(self, key: KindKey, *, terminating: bool) -> _Kind:
        kind = self._kinds.get((key, terminating))
        if kind is None:
            kind = self._kinds[key, terminating] = _Kind(key, terminating=terminating)
            kind.counts = [
                counts for counted, counts in self._matching.items() if self._means(counted, kind)
            ]
        return kind

    def _count(self, kind: _Kind, wishes: PodConstraints, node: str, amount: int) -> bool:
        kind.by_node[node] += amount
        if not kind.by_node[node]:
            del kind.by_node[node]
        for counts in kind.counts:
            counts.add(node, amount)
        for term in wishes.anti_affinity:
            guard = self._guards.get(term)
            if guard is None:
                guard = self._guards[term] = Counts(self._clock)
                self._by_label = self._by_label or bool(term.pods.by_label)
                self._against.clear()
            guard.add(node, amount)
            if not guard.by_node:
                del self._guards[term]
                self._against.clear()
        if not kind.by_node:
            self._kinds.pop(kind.key, None)
        return bool(kind.counts or wishes.anti_affinity)


def _others_of(node: NodeState) -> tuple[Neighbour, ...]:
    return node.observed.others if node.observed is not None else ()


def _keeps_away(node: NodeState) -> bool:
    return any(each.anti_affinity for each in _others_of(node))


def kind_of(pod: PodSubmitted) -> KindKey:
    """Return a pod's namespace and sorted labels, which are all that a selector reads."""
    return pod.namespace, tuple(sorted(pod.labels.items()))


def has_wishes(wishes: PodConstraints) -> bool:
    """Return True if a pod has affinity, anti-affinity or topology spread terms."""
    if wishes is NO_WISHES:
        return False
    return bool(wishes.affinity or wishes.anti_affinity or wishes.preferred or wishes.spread)
