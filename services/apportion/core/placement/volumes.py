"""What the volume claims of a pod mean for its place: where it may go, or why nowhere yet.

A claim of the ledger says where its volume is or could be, which the pod then needs of its node
beside its own affinity. Source: kube-scheduler's VolumeBinding, VolumeZone and VolumeRestrictions.
Where there is no Kubernetes there are no volumes, and claims mean nothing. Invariant: a pod without
claims costs nothing here.
"""

from itertools import product
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.ledger.change import Change
from apportion.core.ledger.state import PodState, State
from apportion_schemas import (
    NodeExpression,
    PodAdopted,
    PodGone,
    PodSubmitted,
    RefusalCode,
    Shape,
    VolumeShortage,
)

_READY: Final = ("bound", "first-consumer")
_NOWHERE: Final = NodeExpression(key="metadata.name", operator="In", of_field=True)
"""No node has a name out of none."""
_encode = msgspec.json.Encoder(order="sorted").encode

_Terms = tuple[tuple[NodeExpression, ...], ...]


class Wanted(NamedTuple):
    """What a pod wants, its volumes included, and a key that is equal for those that want alike."""

    key: bytes
    shape: Shape


class Volumes:
    """The claims over one state, and who has them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pods: dict[tuple[str, str], dict[str, PodState]] = {}
        for pod in state.pods.values():
            self._note(pod, live=True)

    def observe(self, change: Change) -> None:
        """Take note of a pod that came or went."""
        kind = type(change.data)
        if change.pod is None:
            return
        if kind is PodSubmitted or kind is PodAdopted:
            self._note(change.pod, live=True)
        elif kind is PodGone:
            self._note(change.pod, live=False)

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

    def wanted(self, pod: PodState) -> Wanted:
        """What the pod wants of a node; of one with claims more than its shape says."""
        about = pod.submitted
        if not about.volume_claims or not self._state.of_kubernetes:
            return Wanted(pod.shape_key, about.shape)
        terms = ((_NOWHERE,),) if self.shortage(pod) is not None else self._terms(pod)
        if not terms:
            return Wanted(pod.shape_key, about.shape)
        node = structs.replace(about.shape.node, required=terms)
        key = pod.shape_key + b"volumes " + _encode(terms)
        return Wanted(key, structs.replace(about.shape, node=node))

    def shortage(self, pod: PodState) -> VolumeShortage | None:
        """The first claim for which the pod may go nowhere, and what is with it."""
        about = pod.submitted
        if not about.volume_claims or not self._state.of_kubernetes:
            return None
        known = self._state.volume_claims.get(about.namespace, {})
        for claim in about.volume_claims:
            fact = known.get(claim)
            if fact is None or fact.state not in _READY:
                return VolumeShortage(claim=claim, state=fact.state if fact else "missing")
            if fact.single_pod and self._is_held(pod, claim):
                return VolumeShortage(claim=claim, state="in-use")
        return None

    def _is_held(self, pod: PodState, claim: str) -> bool:
        """Whether another pod that has a place mounts the claim."""
        others = self._pods.get((pod.submitted.namespace, claim), {})
        return any(other.placement is not None for uid, other in others.items() if uid != pod.uid)

    def _terms(self, pod: PodState) -> _Terms:
        """The pod's own terms and those of each of its claims: one of each must match."""
        about = pod.submitted
        known = self._state.volume_claims[about.namespace]
        parts = [about.shape.node.required, *(known[each].nodes for each in about.volume_claims)]
        parts = [part for part in parts if part]
        if not parts:
            return ()
        joined = (
            tuple(dict.fromkeys(expression for term in choice for expression in term))
            for choice in product(*parts)
            if all(choice)  # a term without expressions matches nothing
        )
        found = tuple(dict.fromkeys(joined))
        return found or ((_NOWHERE,),)


def code_of(shortage: VolumeShortage) -> RefusalCode:
    """The code under which the pod is refused."""
    if shortage.state == "in-use":
        return RefusalCode.VOLUME_CLAIM_IN_USE
    return RefusalCode.VOLUME_CLAIM_NOT_READY
