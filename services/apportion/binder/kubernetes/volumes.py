"""Volumes for a pod that has a node: claims that wait for their first consumer are bound before it.

As kube-scheduler's VolumeBinding does it. A volume that is there already is kept for the claim;
else the claim is told the node, and its provisioner makes the volume there. Kubernetes' volume
controller binds claim and volume, and only then is the pod bound.

Invariants: a pod is bound only once every claim of it has a volume that its node can reach; what is
asked for may be asked for again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from apportion.binder.target import Failed
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.feasibility.nodes import matches
from apportion.core.workloads.pods.volumes import (
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    Claim,
    Volume,
    affinity_of,
    matching,
    read_claim,
    read_class,
    read_volume,
    size_of,
)
from apportion.runtime.kube.client import MERGE_PATCH, KubeApi, KubeRefused
from apportion.runtime.kube.watch import pages
from apportion.runtime.process.clock import Clock
from apportion_schemas.workload import Term

WAIT_S = 10.0
"""How long one try waits for volumes; a delivery that comes again waits on."""
PATIENCE_S = 600.0
"""How long after the placement it is decided anew: kube-scheduler's `bindTimeoutSeconds`."""
LOOK_EVERY_S = 1.0
CHOSEN_MAX = 4_096
_TRY_TIMEOUT_S = 6.0
_NOT_FOUND = 404
_CONFLICT = 409
_VOLUMES = "/api/v1/persistentvolumes"

_encode = msgspec.json.Encoder().encode


class _Impossible(Exception):
    """The pod cannot have the volume on this node; its text says why."""


class _Try(NamedTuple):
    """One try: for which pod, with which attempt, on which node."""

    pod: PodState
    attempt: int
    node: NodeState


class VolumeBinding:
    """Has the volumes of pods made and bound, over one API server."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._chosen: dict[tuple[str, int, str], None] = {}

    async def ready(self, pod: PodState, attempt: int, node: NodeState) -> Failed | None:
        """None once the pod may be bound to the node, as far as its claims go.

        Raises:
            KubeUnavailable: nobody answered.
        """
        one = _Try(pod, attempt, node)
        try:
            about = one.pod.submitted
            known = self._state.volume_claims.get(about.namespace, {})
            waiting: list[Claim] = []
            for name in about.volume_claims:
                seen = known.get(name)
                if seen is not None and seen.state == "bound":
                    _reach(seen.nodes, one.node, name)
                    continue
                claim = await self._claim(one, name)
                if await self._has_volume(one, claim):
                    continue
                waits = seen is not None and seen.state == "first-consumer"
                if not waits and not claim.spec.volume_name:
                    raise _Impossible(f"claim {name} has no volume, and waits for no pod")
                waiting.append(claim)
            # The smallest first, so that none takes a volume that only another one needs.
            for claim in sorted(waiting, key=size_of):
                await self._ask_for(one, claim)
            left = [claim.metadata.name for claim in waiting]
            until_s = self._clock.monotonic() + WAIT_S
            while left:
                if self._clock.monotonic() >= until_s:
                    # Wait on, or look for another node where that has taken long.
                    said, now = f"claim {', '.join(left)} has no volume yet", self._clock.now()
                    began = datetime.fromisoformat(pod.placed_time) if pod.placed_time else now
                    late = (now - began).total_seconds() >= PATIENCE_S
                    return Failed(said, final=late, waits=not late)
                await self._clock.pause(LOOK_EVERY_S)
                left = [name for name in left if not await self._look(one, name)]
        except _Impossible as error:
            return Failed(str(error), final=True)
        except KubeRefused as error:
            return Failed(str(error), final=False)
        return None

    async def _look(self, one: _Try, name: str) -> bool:
        claim = await self._claim(one, name)
        if await self._has_volume(one, claim):
            return True
        key = (one.pod.uid, one.attempt, name)
        if key in self._chosen and SELECTED_NODE not in claim.metadata.annotations:
            del self._chosen[key]
            raise _Impossible(f"no volume could be made for claim {name} on {one.node.name}")
        return False

    async def _claim(self, one: _Try, name: str) -> Claim:
        about = one.pod.submitted
        try:
            claim = read_claim(await self._api.get(_claim_path(about.namespace, name)))
        except KubeRefused as error:
            if error.status == _NOT_FOUND:
                raise _Impossible(f"claim {name} is not there any more") from None
            raise
        if claim.metadata.deletion_timestamp is not None:
            raise _Impossible(f"claim {name} is being deleted")
        chosen = claim.metadata.annotations.get(SELECTED_NODE, one.node.name)
        if not claim.bound and chosen != one.node.name:
            raise _Impossible(f"the volume of claim {name} is being made for {chosen}")
        return claim

    async def _has_volume(self, one: _Try, claim: Claim) -> bool:
        """Whether the claim is bound, to a volume that the node can reach."""
        name = claim.metadata.name
        if not claim.spec.volume_name:
            return False
        try:
            body = await self._api.get(f"{_VOLUMES}/{quote(claim.spec.volume_name, safe='')}")
        except KubeRefused as error:
            if error.status == _NOT_FOUND:
                return False  # it may come yet: who made it tells of it twice
            raise
        _reach(affinity_of(read_volume(body)), one.node, name)
        return claim.bound

    async def _ask_for(self, one: _Try, claim: Claim) -> None:
        """Keep a volume for the claim, or tell its provisioner the node."""
        name = claim.metadata.name
        if claim.spec.volume_name or SELECTED_NODE in claim.metadata.annotations:
            return
        found: list[Volume] = []
        async for items, _ in pages(self._api, _VOLUMES):
            volumes = (read_volume(bytes(item)) for item in items)
            found += [each for each in volumes if each.storage_class == claim.storage_class]
        free = matching(claim, found)
        near = [each for each in free if _reaches(affinity_of(each), one.node)]
        if near:
            # The volume says whose it is to be; Kubernetes' controller does the rest.
            volume = near[0]
            meta = claim.metadata
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            }
            ours = {} if volume.spec.claim_ref else {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            path = f"{_VOLUMES}/{quote(volume.metadata.name, safe='')}"
            await self._patch(path, volume.metadata, ours, {"spec": {"claimRef": reference}})
            return
        if any(each.spec.claim_ref is not None for each in free):
            raise _Impossible(f"the volume that is kept for claim {name} is on other nodes")
        class_ = quote(claim.storage_class, safe="")
        path = f"/apis/storage.k8s.io/v1/storageclasses/{class_}"
        if not read_class(await self._api.get(path)).provisions:
            raise _Impossible(f"no volume for claim {name} is free on {one.node.name}")
        key = (one.pod.uid, one.attempt, name)
        if key in self._chosen:
            del self._chosen[key]
            raise _Impossible(f"no volume could be made for claim {name} on {one.node.name}")
        body = {"annotations": {SELECTED_NODE: one.node.name}}
        await self._patch(_claim_path(claim.metadata.namespace, name), claim.metadata, body)
        self._chosen[key] = None
        if len(self._chosen) > CHOSEN_MAX:
            del self._chosen[next(iter(self._chosen))]

    async def _patch(
        self, path: str, seen: Any, metadata: dict[str, Any], rest: dict[str, Any] | None = None
    ) -> None:
        """Change an object that is as it was seen; if it is not, the next try sees it anew."""
        meta = {"resourceVersion": seen.resource_version, "uid": seen.uid, **metadata}
        answer = await self._api.request(
            "PATCH",
            path,
            body=_encode({"metadata": meta, **(rest or {})}),
            content_type=MERGE_PATCH,
            timeout_s=_TRY_TIMEOUT_S,
        )
        if not answer.ok:
            raise answer.refusal()


def _claim_path(namespace: str, name: str) -> str:
    of = quote(namespace, safe="")
    return f"/api/v1/namespaces/{of}/persistentvolumeclaims/{quote(name, safe='')}"


def _reaches(terms: tuple[Term, ...], node: NodeState) -> bool:
    return not terms or any(matches(term, node) for term in terms)


def _reach(terms: tuple[Term, ...], node: NodeState, claim: str) -> None:
    if not _reaches(terms, node):
        raise _Impossible(f"the volume of claim {claim} cannot be reached from {node.name}")
