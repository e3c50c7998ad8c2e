"""Evaluate a pod's volume claims: which nodes the pod may use, or why it must wait.

Without Kubernetes, claims have no effect. Source: kube-scheduler's VolumeBinding,
VolumeRestrictions, VolumeZone and NodeVolumeLimits."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import (
    NodeExpression,
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
# events that concern volumes even without a pod that mounts any
OF_VOLUMES: Final = frozenset((NodeObserved, NodeGone, VolumeClaimObserved, VolumeClaimGone))
Key = TypeVar("Key")

ClaimKey = tuple[str, str]  # namespace and name of a claim
Claims = Mapping[str, Mapping[str, VolumeClaimObserved]]
# a node must match one of these terms; an empty term matches no node
Terms = tuple[tuple[NodeExpression, ...], ...]
NOWHERE: tuple[Terms, ...] = ((),)

_encode = msgspec.json.Encoder(order="sorted").encode


class ToAttach(NamedTuple):
    """The volumes of a pod that one CSI driver attaches."""

    fresh: int  # volumes that no other pod mounts
    shared: tuple[ClaimKey, ...]


class VolumeNeeds:
    """What a pod's volumes require of a node; equal requirements have an equal `key`."""

    def __init__(
        self,
        places: tuple[Terms, ...],
        attached: Mapping[str, ToAttach],
        claims: Claims,
        epoch: int,
    ) -> None:
        self.places = places  # nodes of each volume that is not available everywhere
        self.attached = attached  # volumes by driver, if it has a limit
        self._claims = claims
        self.key = b"volumes " + _encode((places, attached, epoch if attached else 0))

    def check(self, _shape: object, node: NodeState) -> tuple[int, int]:
        """Return needed and available attachments of the first driver with too few, or (0, 0)."""
        limits = node.observed.volume_limits if node.observed is not None else {}
        for driver, (fresh, shared) in sorted(self.attached.items()):
            limit = limits.get(driver)
            if limit is None:
                continue
            there = {
                (namespace, name)
                for namespace, name in mounted(node)
                if (found := self._claims.get(namespace, {}).get(name)) is not None
                and found.driver == driver
            }
            # A limit of 0 means that the driver is missing: not even a mounted volume can be used.
            needed = fresh + sum(not limit or key not in there for key in shared)
            if needed and limit - len(there) < needed:
                return needed, max(limit - len(there), 0)
        return 0, 0


def mounted(node: NodeState) -> set[ClaimKey]:
    """Return the claims that pods of the node mount, including those of other schedulers."""
    found = {
        (pod.submitted.namespace, claim)
        for pod in node.pods.values()
        for claim in pod.submitted.volume_claims
    }
    if node.observed is not None:
        found |= {
            (each.namespace, claim) for each in node.observed.others for claim in each.volume_claims
        }
    return found


class Volumes:
    """Tracks all volume claims, and the pods that mount them."""

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
        """Apply the fold's change: pods that came or went, nodes, and drivers of claims."""
        data = change.data
        kind = type(data)
        if isinstance(data, NodeObserved | NodeGone):
            node = self._state.nodes.get(data.node)
            self._note_node(data.node, node.observed if node is not None else None)
        elif isinstance(data, VolumeClaimObserved | VolumeClaimGone):
            key = (data.namespace, data.claim)
            driver = data.driver if isinstance(data, VolumeClaimObserved) else ""
            if driver != self._drivers.pop(key, "") and self._is_mounted(key):
                self._epoch += 1  # nodes where it is mounted may have less room than computed
            if driver:
                self._drivers[key] = driver
        if change.pod is None:
            return
        if kind is PodSubmitted or kind is PodAdopted:
            self._note(change.pod, live=True)
        elif kind is PodGone:
            self._note(change.pod, live=False)

    def _note_node(self, name: str, now: NodeObserved | None) -> None:
        # What foreign pods mount there, and the drivers with a limit.
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
        """Return what the pod's volumes require of a node; None if they require nothing."""
        about = pod.submitted
        if not self._minds(about):
            return None
        places = NOWHERE
        if self.shortage(pod) is None:  # of claims whose volumes are not available everywhere
            known = self._state.volume_claims[about.namespace]
            nodes = (known[claim].nodes for claim in about.volume_claims)
            places = tuple(dict.fromkeys(filter(None, nodes)))
        by_driver: dict[str, list[ClaimKey]] = {}
        for claim in about.volume_claims if self._limited else ():
            key = (about.namespace, claim)
            driver = self._drivers.get(key, "")
            if driver in self._limited:
                by_driver.setdefault(driver, []).append(key)
        attached = {}
        for driver, keys in by_driver.items():
            shared = tuple(key for key in keys if self._is_mounted(key, pod))
            attached[driver] = ToAttach(len(keys) - len(shared), shared)
        if not places and not attached:
            return None
        return VolumeNeeds(places, attached, self._state.volume_claims, self._epoch)

    def _minds(self, about: PodSubmitted) -> bool:
        # A pod with a chooser is checked by kube-scheduler.
        return bool(about.volume_claims) and self._state.of_kubernetes and not about.chooser

    def shortage(self, pod: PodState) -> VolumeShortage | None:
        """Return the first claim that keeps the pod off every node, or None."""
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
        if key in self._others:
            return True
        ours = self._pods.get(key, {}).values()
        return any(pod.placement is not None for pod in ours if pod is not but)


def _add(counts: Counter[Key], key: Key, amount: int) -> None:
    # Removes counts of 0.
    counts[key] += amount
    if not counts[key]:
        del counts[key]


def code_of(shortage: VolumeShortage) -> RefusalCode:
    """Return the refusal code for a pod that lacks this volume."""
    if shortage.state == "in-use":
        return RefusalCode.VOLUME_CLAIM_IN_USE
    return RefusalCode.VOLUME_CLAIM_NOT_READY
