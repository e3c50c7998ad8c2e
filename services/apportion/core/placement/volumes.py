"""What the volume claims of a pod mean for its place: where it may go, or why nowhere yet.

A claim of the ledger says where its volume is or could be, which the pod then needs of its node
beside its own affinity. Source: kube-scheduler's VolumeBinding and VolumeRestrictions.
Where there is no Kubernetes there are no volumes, and claims mean nothing. Invariant: a pod without
claims costs nothing here.
"""

from collections import Counter
from typing import Final, TypeVar

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.volume_needs import NOWHERE, ClaimKey, Terms, ToAttach, VolumeNeeds
from apportion_schemas import (
    NodeGone,
    NodeObserved,
    PodAdopted,
    PodGone,
    PodSubmitted,
    RefusalCode,
    VolumeClaimGone,
    VolumeClaimObserved,
    VolumeShortage,
)

_READY: Final = ("bound", "first-consumer")
Key = TypeVar("Key")


class Volumes:
    """The claims over one state, and who has them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pods: dict[ClaimKey, dict[str, PodState]] = {}
        self._nodes: dict[str, NodeObserved] = {}
        self._others: Counter[ClaimKey] = Counter()
        self._limited: Counter[str] = Counter()
        self._drivers: dict[ClaimKey, str] = {}
        self._epoch = 0
        for pod in state.pods.values():
            self._note(pod, live=True)
        for node in state.nodes.values():
            self._note_node(node.name, node.observed)
        for namespace, claims in state.volume_claims.items():
            self._drivers.update({(namespace, name): fact.driver for name, fact in claims.items()})

    def observe(self, change: Change) -> None:
        """Take note of a pod that came or went, of what a node has, and of a claim's driver."""
        data = change.data
        kind = type(data)
        if isinstance(data, NodeObserved | NodeGone):
            node = self._state.nodes.get(data.node)
            self._note_node(data.node, node.observed if node is not None else None)
        elif isinstance(data, VolumeClaimObserved | VolumeClaimGone):
            self._note_driver(data.namespace, data.claim)
        if change.pod is None:
            return
        if kind is PodSubmitted or kind is PodAdopted:
            self._note(change.pod, live=True)
        elif kind is PodGone:
            self._note(change.pod, live=False)

    def _note_node(self, name: str, now: NodeObserved | None) -> None:
        """What others mount there, and of which drivers it can have so many volumes only."""
        before = self._nodes.pop(name, None)
        if now is not None:
            self._nodes[name] = now
        for observed, sign in ((now, 1), (before, -1)):
            if observed is None:
                continue
            for driver in observed.volume_limits:
                _add(self._limited, driver, sign)
            for each in observed.others:
                for claim in each.volume_claims:
                    _add(self._others, (each.namespace, claim), sign * each.count)

    def _note_driver(self, namespace: str, claim: str) -> None:
        """Nodes where the claim is mounted may have room for fewer volumes than was thought."""
        key, fact = (namespace, claim), self._state.volume_claims.get(namespace, {}).get(claim)
        driver = fact.driver if fact is not None else ""
        if driver != self._drivers.pop(key, "") and self._is_mounted(key):
            self._epoch += 1
        if driver:
            self._drivers[key] = driver

    def _note(self, pod: PodState, *, live: bool) -> None:
        about = pod.submitted
        for claim in about.volume_claims:
            key = (about.namespace, claim)
            if live:
                self._pods.setdefault(key, {})[about.uid] = pod
            elif key in self._pods:
                self._pods[key].pop(about.uid, None)
                if not self._pods[key]:
                    del self._pods[key]

    def needs(self, pod: PodState) -> VolumeNeeds | None:
        """What the pod's volumes need of a node; None for nothing."""
        about = pod.submitted
        if not self._minds(about):
            return None
        places = NOWHERE if self.shortage(pod) is not None else self._places(pod)
        attached = self._attached(pod) if self._limited else {}
        if not places and not attached:
            return None
        return VolumeNeeds(places, attached, self._state.volume_claims, self._epoch)

    def _minds(self, about: PodSubmitted) -> bool:
        """Whether claims decide for the pod; one whose node is chosen elsewhere only has them."""
        return bool(about.volume_claims) and self._state.of_kubernetes and not about.chooser

    def shortage(self, pod: PodState) -> VolumeShortage | None:
        """The first claim for which the pod may go nowhere, and what is with it."""
        about = pod.submitted
        if not self._minds(about):
            return None
        known = self._state.volume_claims.get(about.namespace, {})
        for claim in about.volume_claims:
            fact = known.get(claim)
            if fact is None or fact.state not in _READY:
                return VolumeShortage(claim=claim, state=fact.state if fact else "missing")
            if fact.single_pod and self._is_mounted((about.namespace, claim), pod):
                return VolumeShortage(claim=claim, state="in-use")
        return None

    def _is_mounted(self, key: ClaimKey, but: PodState | None = None) -> bool:
        """Whether a pod that has a place mounts the claim, beside this one."""
        if key in self._others:
            return True
        ours = self._pods.get(key, {}).values()
        return any(pod.placement is not None for pod in ours if pod is not but)

    def _places(self, pod: PodState) -> tuple[Terms, ...]:
        """From where the volume of each claim can be had, of those that are not everywhere."""
        about = pod.submitted
        known = self._state.volume_claims[about.namespace]
        places = (known[claim].nodes for claim in about.volume_claims)
        return tuple(dict.fromkeys(filter(None, places)))

    def _attached(self, pod: PodState) -> dict[str, ToAttach]:
        """The volumes of the pod whose drivers nodes limit, by driver."""
        namespace = pod.submitted.namespace
        found: dict[str, list[ClaimKey]] = {}
        for claim in pod.submitted.volume_claims:
            driver = self._drivers.get((namespace, claim), "")
            if driver in self._limited:
                found.setdefault(driver, []).append((namespace, claim))
        return {driver: self._apart(pod, keys) for driver, keys in found.items()}

    def _apart(self, pod: PodState, keys: list[ClaimKey]) -> ToAttach:
        """The claims that others mount as well, and how many are the pod's alone."""
        shared = tuple(key for key in keys if self._is_mounted(key, pod))
        return ToAttach(len(keys) - len(shared), shared)


def _add(counts: Counter[Key], key: Key, amount: int) -> None:
    """Add to a count; what comes to nothing is there no more."""
    counts[key] += amount
    if not counts[key]:
        del counts[key]


def code_of(shortage: VolumeShortage) -> RefusalCode:
    """The code under which the pod is refused."""
    if shortage.state == "in-use":
        return RefusalCode.VOLUME_CLAIM_IN_USE
    return RefusalCode.VOLUME_CLAIM_NOT_READY
