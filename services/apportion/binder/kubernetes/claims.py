"""Binds the volume claims and ResourceClaims of a placed pod, before the pod is bound.

Volumes, as in kube-scheduler's VolumeBinding: the binder reserves a free volume for the claim, or
lets the provisioner create one on the node. Then Kubernetes' volume controller binds the two. A pod
is bound only once its node can reach a volume for each claim.

ResourceClaims, as in kube-scheduler's DynamicResources: the binder adds a finalizer, and then
allocates and reserves the claim in one write. Invariant: a claim is either released or allocated
exactly as in the pod's live placement. Claims of other drivers and of bound pods are not changed.

Every step can be repeated."""

import asyncio
import logging
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from apportion.binder.binding import Failed
from apportion.core.bounded import remember
from apportion.core.dra.names import claim_of, container_of
from apportion.core.dra.pods import PodClaims
from apportion.core.dra.requests import (
    NotOfClaim,
    ResourceClaim,
    allocation,
    is_allocated,
    of_ours,
    read_resource_claim,
)
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.feasibility.nodes import matches
from apportion.core.workloads.adoption.claims import ENDED
from apportion.core.workloads.dialects import ManifestError
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
from apportion.runtime.kube.client import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    KubeApi,
    KubeRefused,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.kube.examining import API, CLAIMS
from apportion.runtime.kube.pods import find_pod
from apportion.runtime.kube.watch import pages
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion_schemas import PodGone, PodPlaced, PodSubmitted
from apportion_schemas.workload import Term

WAIT_S = 10.0  # how long one try waits for volumes; a redelivery continues to wait
PATIENCE_S = 600.0  # age of a placement after which it fails: kube-scheduler's `bindTimeoutSeconds`
LOOK_AT_VOLUMES_S: Final = 1.0
CHOSEN_MAX = 4_096
_TRY_TIMEOUT_S: Final = 6.0
_VOLUMES = "/api/v1/persistentvolumes"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
# interval of checks of all claims, for pods that ended while no binder ran
LOOK_EVERY_S: Final = 60.0
GATHER_S: Final = 0.2
PAUSE_S: Final = 2.0
Json = dict[str, Any]

_log = logging.getLogger(__name__)


class _Impossible(Exception): ...


class _Try(NamedTuple):
    pod: PodState
    attempt: int
    node: NodeState


class VolumeBinding:
    """Reserves or provisions the volumes of placed pods."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._chosen: dict[tuple[str, int, str], None] = {}

    async def ready(self, pod: PodState, attempt: int, node: NodeState) -> Failed | None:
        """Return None once the pod's volumes are bound, else the failure.

        Raises KubeUnavailable."""
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
                    raise _Impossible(
                        f"claim {name} is not bound to a volume, and its storage class does not "
                        "use WaitForFirstConsumer"
                    )
                waiting.append(claim)
            # Smallest first, so that no claim takes a volume that only a larger one could use.
            for claim in sorted(waiting, key=size_of):
                await self._ask_for(one, claim)
            left = [claim.metadata.name for claim in waiting]
            until_s = self._clock.monotonic() + WAIT_S
            while left:
                if self._clock.monotonic() >= until_s:
                    # After PATIENCE_S the scheduler looks for another node.
                    said, now = f"claim {', '.join(left)} is not bound yet", self._clock.now()
                    began = datetime.fromisoformat(pod.placed_time) if pod.placed_time else now
                    late = (now - began).total_seconds() >= PATIENCE_S
                    return Failed(said, final=late, waits=not late)
                await self._clock.pause(LOOK_AT_VOLUMES_S)
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
            raise _Impossible(f"no volume was provisioned for claim {name} on {one.node.name}")
        return False

    async def _claim(self, one: _Try, name: str) -> Claim:
        about = one.pod.submitted
        body = await self._api.find(_claim_path(about.namespace, name))
        if body is None:
            raise _Impossible(f"claim {name} no longer exists")
        claim = read_claim(body)
        if claim.metadata.deletion_timestamp is not None:
            raise _Impossible(f"claim {name} is being deleted")
        chosen = claim.metadata.annotations.get(SELECTED_NODE, one.node.name)
        if not claim.bound and chosen != one.node.name:
            raise _Impossible(f"the volume of claim {name} is being provisioned on {chosen}")
        return claim

    async def _has_volume(self, one: _Try, claim: Claim) -> bool:
        name = claim.metadata.name
        if not claim.spec.volume_name:
            return False
        body = await self._api.find(f"{_VOLUMES}/{quote(claim.spec.volume_name, safe='')}")
        if body is None:
            return False  # the claim may be stored before its volume
        _reach(affinity_of(read_volume(body)), one.node, name)
        return claim.bound

    async def _ask_for(self, one: _Try, claim: Claim) -> None:
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
            # A volume's claimRef reserves it; Kubernetes' controller then binds the two.
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
            raise _Impossible(
                f"the volume reserved for claim {name} is not available on {one.node.name}"
            )
        class_ = quote(claim.storage_class, safe="")
        path = f"/apis/storage.k8s.io/v1/storageclasses/{class_}"
        if not read_class(await self._api.get(path)).provisions:
            raise _Impossible(f"{one.node.name} has no free volume for claim {name}")
        key = (one.pod.uid, one.attempt, name)
        if key in self._chosen:
            del self._chosen[key]
            raise _Impossible(f"no volume was provisioned for claim {name} on {one.node.name}")
        body = {"annotations": {SELECTED_NODE: one.node.name}}
        await self._patch(_claim_path(claim.metadata.namespace, name), claim.metadata, body)
        remember(self._chosen, key, None, most=CHOSEN_MAX)

    async def _patch(
        self, path: str, seen: Any, metadata: dict[str, Any], rest: dict[str, Any] | None = None
    ) -> None:
        """Change an object. Raises if the object has changed since the read; then retry."""
        meta = {"resourceVersion": seen.resource_version, "uid": seen.uid, **metadata}
        body = {"metadata": meta, **(rest or {})}
        await self._api.change(
            "PATCH", path, body, content_type=MERGE_PATCH, timeout_s=_TRY_TIMEOUT_S
        )


def _claim_path(namespace: str, name: str) -> str:
    of = quote(namespace, safe="")
    return f"/api/v1/namespaces/{of}/persistentvolumeclaims/{quote(name, safe='')}"


def _reaches(terms: tuple[Term, ...], node: NodeState) -> bool:
    return not terms or any(matches(term, node) for term in terms)


def _reach(terms: tuple[Term, ...], node: NodeState, claim: str) -> None:
    if not _reaches(terms, node):
        raise _Impossible(f"the volume of claim {claim} is not available on {node.name}")


def has_claims(pod: PodSubmitted) -> bool:
    """Return True if the pod requests devices by ResourceClaims."""
    return any(claim_of(ask.container) for ask in pod.shape.asks)


class ClaimBinding:
    """Allocates the ResourceClaims of placed pods."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def ready(self, placed: PodPlaced, node: NodeState) -> Failed | None:
        """Return None once the pod's claims are allocated, else the failure.

        Raises KubeUnavailable."""
        try:
            body = await self._api.get(pod_path(placed.namespace, placed.name))
            pod = PodClaims(body)
            if pod.pod != placed.pod:
                raise _Impossible("another pod has this name now")
            if pod.node:
                return None  # the binding call finds out how it was bound
            left = {share.container for share in placed.shares if claim_of(share.container)}
            for key in dict.fromkeys(pod.keys):
                left.discard(await self._ready(key.partition("/")[2], placed, node))
            if left:
                gone = ", ".join(map(claim_of, sorted(left)))
                raise _Impossible(f"claim {gone} no longer exists; recreate the pod")
        except (_Impossible, NotOfClaim) as error:
            return Failed(str(error), final=True)
        except (KubeRefused, ManifestError, msgspec.MsgspecError) as error:
            return Failed(str(error), final=False)
        return None

    async def _ready(self, name: str, placed: PodPlaced, node: NodeState) -> str:
        """Allocate the claim `name` to the pod. Return the `container` field of its shares."""
        path = _path(placed.namespace, name)
        raw = await self._api.find(path)
        if raw is None:
            raise _Impossible(f"claim {name} no longer exists")
        claim, document = read_resource_claim(raw), msgspec.json.decode(raw)
        container = container_of(claim.metadata.uid)
        shares = [share for share in placed.shares if share.container == container]
        if not shares:
            raise _Impossible(f"claim {name} was recreated after the pod; recreate the pod, too")
        devices = {name: found.device for name, found in node.by_id.items()}
        wanted = allocation(claim, shares, devices, node=placed.node, attempt=placed.attempt)
        if claim.metadata.deletion_timestamp is not None:
            raise _Impossible(f"claim {claim.key} is being deleted")
        others = [each.name for each in claim.status.reserved_for if each.uid != placed.pod]
        if others:
            raise _Impossible(f"claim {claim.key} is reserved for {', '.join(others)}")
        if claim.results and not of_ours(claim.results):
            raise _Impossible(f"claim {claim.key} was allocated by another driver")
        if is_allocated(claim, wanted) and claim.reserved_for(placed.pod):
            return container
        if claim.results:
            document = await _write_status(self._api, path, document, None, [])
        if FINALIZER not in document["metadata"].get("finalizers", ()):
            finalizers = [*document["metadata"].get("finalizers", ()), FINALIZER]
            changed = document["metadata"] | {"finalizers": finalizers}
            document = await _put(self._api, path, document | {"metadata": changed})
        consumer = {"resource": "pods", "name": placed.name, "uid": placed.pod}
        await _write_status(self._api, path, document, wanted, [consumer])
        return container


class ClaimRelease:
    """Releases the ResourceClaims of ended pods."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._left: set[str] = set()
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Record that a pod with claims is gone. Pass this method to the reader."""
        if not isinstance(change.data, PodGone) or change.pod is None or change.refused:
            return
        if has_claims(change.pod.submitted):
            self._left.add(change.pod.submitted.namespace)
            self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Release the claims of pods that end or have already ended, until cancelled."""
        await reader.caught_up()
        path = CLAIMS
        while True:
            left, self._left = self._left, set()
            self._news.clear()
            try:
                for each in [path] if path else [_path(name) for name in sorted(left)]:
                    await self._look(each)
            except (KubeUnavailable, KubeRefused, msgspec.MsgspecError) as error:
                _log.warning("claims not released, retrying: %s", error)
                self._left |= left
                await self._clock.pause(PAUSE_S)
                continue
            path = ""
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()
                await self._clock.pause(GATHER_S)
            except TimeoutError:
                path = CLAIMS

    async def _look(self, path: str) -> None:
        async for items, _ in pages(self._api, path):
            for item in items:
                try:
                    claim = read_resource_claim(bytes(item))
                except msgspec.MsgspecError as error:
                    _log.warning("unreadable claim skipped: %s", error)
                    continue
                if not of_ours(claim.results):
                    continue
                try:
                    for each in claim.status.reserved_for:
                        if each.resource != "pods" or each.uid in self._state.pods:
                            break
                        pod = await find_pod(self._api, claim.metadata.namespace, each.name)
                        if pod is None or pod.metadata.uid != each.uid:
                            continue
                        if pod.status.phase not in ENDED:
                            break
                    else:
                        await self._let_go(claim, bytes(item))
                except KubeRefused as error:  # the next check of all claims tries again
                    _log.warning("claim %s not released: %s", claim.key, error)

    async def _let_go(self, claim: ResourceClaim, raw: bytes) -> None:
        path = _path(claim.metadata.namespace, claim.metadata.name)
        try:
            document = await _write_status(self._api, path, msgspec.json.decode(raw), None, [])
            finalizers = document["metadata"].get("finalizers", [])
            if FINALIZER in finalizers:
                left = [each for each in finalizers if each != FINALIZER]
                changed = document["metadata"] | {"finalizers": left}
                await _put(self._api, path, document | {"metadata": changed})
        except KubeRefused as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            self._left.add(claim.metadata.namespace)  # it changed: check again
            self._news.set()
        else:
            _log.info("claim %s released", claim.key)


def _path(namespace: str, name: str = "") -> str:
    path = f"{API}/namespaces/{quote(namespace, safe='')}/resourceclaims"
    return f"{path}/{quote(name, safe='')}" if name else path


async def _put(api: KubeApi, path: str, document: Json) -> Json:
    kind = {"apiVersion": API.removeprefix("/apis/"), "kind": "ResourceClaim"}
    whole = document | kind  # items of a list lack apiVersion and kind
    answer = await api.change("PUT", path, whole, timeout_s=_TRY_TIMEOUT_S)
    found: Json = msgspec.json.decode(answer)
    return found


async def _write_status(
    api: KubeApi, path: str, document: Json, allocated: Json | None, reserved: list[Json]
) -> Json:
    status = dict(document.get("status") or {})
    status.pop("devices", None)  # belongs to the previous allocation
    status |= {"allocation": allocated, "reservedFor": reserved}
    return await _put(api, f"{path}/status", document | {"status": status})
