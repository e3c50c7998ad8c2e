"""The cluster's ResourceClaims, and the pods that wait for them.

Invariant: a claim belongs to one pod, preferably one in the ledger. Other pods that name the
claim are rejected until that pod is gone."""

from collections.abc import Callable, Iterable
from typing import Any

from apportion.core.dra.names import claim_of
from apportion.core.dra.pods import PodClaims
from apportion.core.dra.requests import ResourceClaim, read_resource_claim
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.runtime.kube.watch import Kind
from apportion.watcher.kubernetes.kind import Problem, readable
from apportion.watcher.kubernetes.objects import PodView
from apportion_schemas import Ask, PodAdopted, PodGone, PodSubmitted

RESOURCE_CLAIMS = "resourceclaims"


class ResourceClaimView:
    """The cluster's ResourceClaims, and the pods that own them or wait for them."""

    def __init__(self, state: State, stir: Callable[[], None], problem: Problem) -> None:
        self._stir = stir
        self._claims: dict[str, ResourceClaim] = {}
        self._keys: dict[str, str] = {}
        self._owner: dict[str, str] = {}
        self._owned: dict[str, list[str]] = {}
        self._waiting: dict[str, tuple[bytes, list[str]]] = {}
        self._naming: dict[str, dict[str, None]] = {}
        self._again: dict[str, None] = {}
        for pod in state.pods.values():
            self._own(pod.uid, pod.submitted.shape.asks)
        self.kinds: dict[str, Kind[Any]] = {
            RESOURCE_CLAIMS: readable(
                "ResourceClaim",
                self._claims,
                read_resource_claim,
                self._changed,
                problem,
                keeps=False,
            )
        }

    def observe(self, change: Change) -> None:
        """Update the owners after a pod was added to or removed from the ledger."""
        data = change.data
        if change.pod is None or change.refused:
            return
        if isinstance(data, PodSubmitted | PodAdopted):
            self._own(change.pod.uid, change.pod.submitted.shape.asks)
            self._forget(change.pod.uid)
        elif isinstance(data, PodGone):
            self._gone(data.uid)

    def follow(self, uid: str, now: PodView | None, *, known: bool) -> None:
        """Update after a pod of the cluster changed. `known` is True if the ledger has the pod."""
        if now is None or now.ended:
            self._gone(uid)
        elif now.node or known:
            self._forget(uid)

    def drafted(self, raw: bytes, draft: PodDraft) -> PodDraft | None:
        """Add the requests of a pod's claims to its draft. Raises ManifestError.

        Return None if a claim is missing. The pod is remembered, as its claims may still change."""
        pod = PodClaims(raw)
        self._forget(pod.pod)
        self._waiting[pod.pod] = raw, pod.keys
        for key in pod.keys:
            self._naming.setdefault(key, {})[pod.pod] = None
        found = pod.drafted(
            draft, self._claims, lambda claim: self._owner.get(claim, pod.pod) != pod.pod
        )
        if found is not None:
            self._own(pod.pod, found.shape.asks)
        return found

    def take(self) -> list[bytes]:
        """Return pods, as JSON, that must be read again because their claims changed."""
        again, self._again = self._again, {}
        return [self._waiting[uid][0] for uid in again if uid in self._waiting]

    def _own(self, pod: str, asks: Iterable[Ask]) -> None:
        for ask in asks:
            claim = claim_of(ask.container)
            if claim and self._owner.get(claim) != pod:
                self._owner[claim] = pod
                self._owned.setdefault(pod, []).append(claim)

    def _gone(self, uid: str) -> None:
        self._forget(uid)
        # Other pods that name its claims may have them now.
        for claim in self._owned.pop(uid, ()):
            if self._owner.get(claim) == uid:
                del self._owner[claim]
                self._mark(self._keys.get(claim, ""))

    def _forget(self, uid: str) -> None:
        self._again.pop(uid, None)
        _, keys = self._waiting.pop(uid, (b"", []))
        for key in keys:
            naming = self._naming.get(key, {})
            naming.pop(uid, None)
            if not naming:
                self._naming.pop(key, None)

    def _mark(self, key: str) -> None:
        for uid in self._naming.get(key, ()):
            self._again[uid] = None
            self._stir()

    def _changed(
        self, key: str, before: ResourceClaim | None, now: ResourceClaim | None, _version: int
    ) -> None:
        if before is not None:
            self._keys.pop(before.metadata.uid, None)
        if now is not None:
            self._keys[now.metadata.uid] = key
        self._mark(key)
