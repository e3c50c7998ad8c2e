"""Which pods are where, as far as others care: counted by node, for selectors that somebody uses.

Kubernetes' pod affinity, anti-affinity and topology spread ask how many pods that a selector means
are in a domain. Here each such selector has a count for every node, which one pod that comes or
goes changes by one; nothing is counted before the first pod with such a wish. Topology spread does
not count pods that are being deleted, so a selector of spread has a count of its own.

A derived structure: it can be dropped and made again from the `State`. Invariant: after `note` of
every pod that was placed or left, each count is what a walk over all placed pods would give."""

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

SELECTORS_MAX: Final = 4096  # counted at once; beyond, all are forgotten and asked for anew
_encode = msgspec.json.Encoder(order="sorted").encode

KindKey = tuple[str, tuple[tuple[str, str], ...]]
_Counted = tuple[PodSelector, bool]
"""A selector, and whether its count is for topology spread."""


class Counts:
    """How many pods of one sort each node has; no two changes give the same `version`."""

    def __init__(self, clock: Iterator[int]) -> None:
        self.by_node: Counter[str] = Counter()
        self._clock = clock
        self.version = next(clock)
        self._rows = np.zeros(0, np.int64)
        self._generation = -1
        self._seen = 0
        self._stale: dict[str, None] = {}

    def add(self, node: str, amount: int) -> None:
        """So many pods came to the node, or left it."""
        self.by_node[node] += amount
        if not self.by_node[node]:
            del self.by_node[node]
        self.version = next(self._clock)
        self._stale[node] = None

    def rows(self, columns: Columns) -> NDArray[np.int64]:
        """The count of every row; only what changed since the last time is looked at."""
        changed = columns.facts_changed.since(self._seen)
        self._seen = columns.facts_changed.end
        if self._generation != columns.generation or changed is None:
            self._generation = columns.generation
            self._rows = np.zeros(len(columns.names), np.int64)
            self._stale = dict.fromkeys(self.by_node)
        else:  # of these the node may be another one
            self._rows[changed] = [self.by_node[columns.names[row]] for row in changed.tolist()]
        for node in self._stale:
            if node in columns:  # else it was forgotten, with no pods
                self._rows[columns.row_of(node)] = self.by_node[node]
        self._stale.clear()
        return self._rows


class _Kind:
    """Pods of one namespace with the same labels that are all being deleted, or all are not.

    To a selector they are all alike."""

    def __init__(self, key: KindKey, *, terminating: bool) -> None:
        self.key = (key, terminating)
        self.namespace, self.labels = key[0], dict(key[1])
        self.terminating = terminating
        self.by_node: Counter[str] = Counter()
        self.counts: list[Counts] = []


class Concern(NamedTuple):
    """What of other pods decides about one pod, beside its shape.

    `guards` are the anti-affinity terms of placed pods that mean this one; `wishes` says whether it
    has wishes of its own, and `itself` for each selector of its affinity and then of its spread,
    whether that means the pod itself."""

    guards: tuple[PodTerm, ...]
    wishes: bool
    itself: tuple[bool, ...]


NAME_LABEL: Final = "kubernetes.io/metadata.name"
NO_CONCERN: Final = Concern((), wishes=False, itself=())


class Neighbours:
    """Every placed pod by what it is and where, and those that others placed."""

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
        self._by_label = False  # whether any term ever meant namespaces by their labels
        self._uncounted: list[PodState | NodeState] = []
        self._others: dict[str, tuple[Neighbour, ...]] = {}
        mind = any(has_wishes(pod.submitted.shape.pods) for pod in state.pods.values())
        if mind or any(map(_keeps_away, state.nodes.values())):
            self._activate()

    def note(self, pod: PodState) -> bool:
        """The pod was submitted, placed or taken away; whether a count changed."""
        if not self.active:
            if not has_wishes(pod.submitted.shape.pods):
                return False
            self._activate()
            return True
        at = pod.placement.node if pod.placement is not None else ""
        before = self._at.pop(pod.uid, None)
        kind = before[0] if before is not None else None
        was = before[1] if before is not None else ""
        if kind is None:
            if not at:
                return False
            kind = self._kind(kind_of(pod.submitted), terminating=pod.terminating)
        if at:
            self._at[pod.uid] = (kind, at)
        if at == was:
            return False
        changed = False
        for node, amount in ((was, -1), (at, 1)):
            if node:
                changed |= self._count(kind, pod.submitted.shape.pods, node, amount)
        if not kind.by_node:
            self._kinds.pop(kind.key, None)
        return changed

    def look_at(self, node: NodeState) -> bool:
        """The node was told of anew: other pods of others may be there; whether a count changed."""
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
                if not kind.by_node:
                    self._kinds.pop(kind.key, None)
        return changed

    def rename(self, pod: PodState) -> bool:
        """The pod has other labels, or is being deleted; whether a count changed."""
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
            if not each.by_node:
                self._kinds.pop(each.key, None)
        return changed

    def concern(self, pod: PodSubmitted) -> Concern:
        """What of other pods decides about this one."""
        if not self.active:
            return NO_CONCERN
        self.count(len(self._uncounted))
        wishes, guards = pod.shape.pods, self._guards_against(pod)
        if not has_wishes(wishes):
            return Concern(guards, wishes=False, itself=()) if guards else NO_CONCERN
        selectors = [t.pods for t in wishes.affinity] + [s.pods for s in wishes.spread]
        itself = tuple(self.selects(one, pod) for one in selectors)
        return Concern(guards, wishes=True, itself=itself)

    def counts(self, selector: PodSelector, *, spread: bool = False) -> Counts:
        """The pods that the selector means; counted from now on.

        `spread`: without those that are being deleted. Source: kube-scheduler's PodTopologySpread
        (`countPodsMatchSelector`); its InterPodAffinity counts them."""
        self.count(len(self._uncounted))
        found = self._matching.get((selector, spread))
        if found is None:
            if len(self._matching) >= SELECTORS_MAX:  # whoever holds counts asks for new ones
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
        """Whether the selector means this pod."""
        return self._selects(selector, pod.namespace, pod.labels)

    def owners(self, term: PodTerm) -> Counts:
        """The placed pods that have this term of anti-affinity."""
        return self._guards[term]

    def relabel(self, namespace: str) -> bool:
        """The namespace has other labels; whether somebody's terms may mean its pods by them."""
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
                # Its name is one of the labels of a namespace on every API server.
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
        """Count up to so many of the pods that stood before anybody minded, or of nodes with pods
        of others; whether all are.

        Whoever asks for a `concern` before has all of them counted."""
        for _ in range(min(some, len(self._uncounted))):
            each = self._uncounted.pop()
            if isinstance(each, NodeState):
                self._count_others(each)
            elif self._state.pods.get(each.uid) is each:  # one that has gone may have left its uid
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
        return bool(kind.counts or wishes.anti_affinity)

    def _guards_against(self, pod: PodSubmitted) -> tuple[PodTerm, ...]:
        if not self._guards:
            return ()
        key = kind_of(pod)
        found = self._against.get(key)
        if found is None:
            if len(self._against) >= SELECTORS_MAX:
                self._against.clear()
            terms = (t for t in self._guards if self._selects(t.pods, pod.namespace, pod.labels))
            found = self._against[key] = tuple(sorted(terms, key=_encode))
        return found


def _others_of(node: NodeState) -> tuple[Neighbour, ...]:
    return node.observed.others if node.observed is not None else ()


def _keeps_away(node: NodeState) -> bool:
    """Whether a pod of others is there that keeps pods away."""
    return any(each.anti_affinity for each in _others_of(node))


def kind_of(pod: PodSubmitted) -> KindKey:
    """What makes two pods alike to every selector."""
    return pod.namespace, tuple(sorted(pod.labels.items()))


def has_wishes(wishes: PodConstraints) -> bool:
    """Whether a pod minds where other pods are."""
    if wishes is NO_WISHES:
        return False
    return bool(wishes.affinity or wishes.anti_affinity or wishes.preferred or wishes.spread)
