"""Volumes that wait for a pod's node: bound before the pod is, as kube-scheduler's VolumeBinding.

A claim of a class with WaitForFirstConsumer gets the smallest volume that matches it and can be had
from the node; where there is none its provisioner is told the node, and makes one. The pod is bound
once all its claims are. Invariant: what is written may be written again; nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from apportion.binder.target import Failed
from apportion.core.dialects import ManifestError
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.manifests.volumes import (
    SELECTED_NODE,
    Claim,
    Volume,
    matching,
    read_claim,
    read_class,
    read_volume,
    terms_of,
)
from apportion.core.placement.filters.nodes import matches
from apportion.runtime.kube.client import MERGE_PATCH, KubeApi, KubeRefused
from apportion.runtime.process.clock import Clock

BIND_WITHIN = timedelta(seconds=600)
"""kube-scheduler's `bindTimeoutSeconds`; then the pod is decided anew."""
LOOKS, LOOK_S = 8, 1.0
"""How often one try looks whether the claims are bound; the next one goes on."""
_VOLUMES = "/api/v1/persistentvolumes"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_BOUND_BY = {"pv.kubernetes.io/bound-by-controller": "yes"}
_encode = msgspec.json.Encoder().encode


class _Volumes(msgspec.Struct, frozen=True):
    items: list[Volume] = []


_decode_volumes = msgspec.json.Decoder(_Volumes).decode


class VolumeBinding:
    """Binds the claims of pods over one API server."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock

    async def bind(self, pod: PodState, node: NodeState) -> Failed | None:
        """See that every claim of the pod has its volume on the node; None once all have.

        Raises:
            KubeUnavailable: nobody answered.
        """
        try:
            for name in self._waiting(pod):
                failed = await self._bind_one(pod, name, node)
                if failed is not None:
                    return failed
        except KubeRefused as error:
            return Failed(str(error), final=False, waits=True)
        except ManifestError as error:
            return Failed(str(error), final=True)
        return None

    def _waiting(self, pod: PodState) -> list[str]:
        """The claims of the pod that the ledger does not know to be bound."""
        about = pod.submitted
        if not about.volume_claims:
            return []
        known = self._state.volume_claims.get(about.namespace, {})
        return [
            claim
            for claim in about.volume_claims
            if (fact := known.get(claim)) is None or fact.state != "bound"
        ]

    async def _bind_one(self, pod: PodState, name: str, node: NodeState) -> Failed | None:
        path = f"/api/v1/namespaces/{pod.submitted.namespace}/persistentvolumeclaims/{name}"
        claim = read_claim(await self._api.get(path))
        if not claim.bound:
            await self._begin(claim, path, node)
        for _ in range(LOOKS):
            claim = read_claim(await self._api.get(path))
            if claim.bound:
                return await self._check(claim, node)
            if claim.spec.volume_name or claim.selected_node == node.name:
                await self._clock.pause(LOOK_S)
                continue
            if not await self._is_taken(claim):
                said = f"claim {name}: its provisioner made no volume for node {node.name}"
                return Failed(said, final=True)
            await self._clock.pause(LOOK_S)
        placed = datetime.fromisoformat(pod.placed_time)
        said = f"claim {name} is not bound to a volume for node {node.name} yet"
        return Failed(said, final=self._clock.now() - placed > BIND_WITHIN, waits=True)

    async def _begin(self, claim: Claim, path: str, node: NodeState) -> None:
        """Keep a volume for the claim, or tell its provisioner for which node to make one."""
        begun = claim.spec.volume_name or claim.selected_node == node.name
        if begun or await self._is_taken(claim):
            return
        class_ = read_class(await self._api.get(f"{_CLASSES}/{claim.storage_class}"))
        volumes = _decode_volumes(await self._api.get(_VOLUMES)).items
        there = [each for each in matching(claim, volumes) if _is_there(each, node)]
        if there:
            await self._keep(there[0], claim)
        elif class_.provisions:
            body = {"metadata": {"annotations": {SELECTED_NODE: node.name}}}
            await self._patch(path, body)

    async def _keep(self, volume: Volume, claim: Claim) -> None:
        """The volume is for this claim; the API server refuses whoever comes second."""
        meta = claim.metadata
        ref = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        }
        about = {"annotations": _BOUND_BY, "resourceVersion": volume.metadata.resource_version}
        body = {"metadata": about, "spec": {"claimRef": ref}}
        await self._patch(f"{_VOLUMES}/{volume.metadata.name}", body)

    async def _patch(self, path: str, body: Mapping[str, object]) -> None:
        """Raises KubeRefused, KubeUnavailable."""
        answer = await self._api.request(
            "PATCH", path, body=_encode(body), content_type=MERGE_PATCH
        )
        if not answer.ok:
            raise answer.refusal()

    async def _is_taken(self, claim: Claim) -> bool:
        """Whether a volume is kept for the claim, which only has to be told."""
        volumes = _decode_volumes(await self._api.get(_VOLUMES)).items
        return any(each.spec.claim_ref is not None and each.is_for(claim) for each in volumes)

    async def _check(self, claim: Claim, node: NodeState) -> Failed | None:
        """The volume that it was bound to may be another than the one that was looked for."""
        volume = read_volume(await self._api.get(f"{_VOLUMES}/{claim.spec.volume_name}"))
        if _is_there(volume, node):
            return None
        name = claim.metadata.name
        said = f"claim {name}: its volume {volume.metadata.name} cannot be had from {node.name}"
        return Failed(said, final=True)


def _is_there(volume: Volume, node: NodeState) -> bool:
    """Whether the volume can be had from the node."""
    terms = terms_of(volume)
    return not terms or any(matches(term, node) for term in terms)
