"""ResourceClaims of pods that have a place: allocated and reserved before the binding, and let go.

As kube-scheduler's DynamicResources does it: the finalizer first, so that a claim that is in use is
not deleted, then allocation and reservation in one write. A claim is let go of once its pod has
ended, also where Kubernetes' own controller does the same. Invariants: a claim is allocated as the
pod's live placement says, or not at all; what an earlier placement of the pod left is taken back
first; of a claim of somebody else, or of a pod that is bound, nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from apportion.binder.target import Failed
from apportion.core.dra.allocation import NotOfClaim, allocation, is_allocated, of_ours
from apportion.core.dra.names import claim_of, container_of
from apportion.core.dra.pods import PodClaims
from apportion.core.dra.requests import Consumer, ResourceClaim, read_resource_claim
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import NodeState, State
from apportion.core.workloads.adoption.claims import ENDED
from apportion.core.workloads.dialects import ManifestError
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path
from apportion.runtime.kube.dra import API, CLAIMS
from apportion.runtime.kube.watch import pages
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion_schemas import PodGone, PodPlaced, PodSubmitted

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
LOOK_EVERY_S: Final = 60.0
"""How often all claims are looked at: for pods that went while nobody was here."""
GATHER_S: Final = 0.2
PAUSE_S: Final = 2.0
_TRY_TIMEOUT_S: Final = 6.0
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)

Json = dict[str, Any]


def has_claims(pod: PodSubmitted) -> bool:
    """Whether the pod asks for devices by claims."""
    return any(claim_of(ask.container) for ask in pod.shape.asks)


class _Impossible(Exception):
    """The pod cannot have its claim; the text says why."""


class ClaimBinding:
    """Allocates the claims of pods, over one API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def ready(self, placed: PodPlaced, node: NodeState) -> Failed | None:
        """None once every claim of the pod is allocated as it is placed, and reserved for it.

        Raises:
            KubeUnavailable: nobody answered.
        """
        try:
            body = await self._api.get(pod_path(placed.namespace, placed.name))
            pod = PodClaims(body)
            if pod.pod != placed.pod:
                raise _Impossible("another pod has its name by now")
            if pod.node:
                return None  # by whom it was bound is for the binding to find out
            left = {share.container for share in placed.shares if claim_of(share.container)}
            for key in dict.fromkeys(pod.keys):
                left.discard(await self._ready(key.partition("/")[2], placed, node))
            if left:
                gone = ", ".join(map(claim_of, sorted(left)))
                raise _Impossible(f"claim {gone} is not there any more: make the pod anew")
        except (_Impossible, NotOfClaim) as error:
            return Failed(str(error), final=True)
        except (KubeRefused, ManifestError, msgspec.MsgspecError) as error:
            return Failed(str(error), final=False)
        return None

    async def _ready(self, name: str, placed: PodPlaced, node: NodeState) -> str:
        """Allocate one claim of the pod; what it is called in the ledger."""
        path = _path(placed.namespace, name)
        try:
            raw = await self._api.get(path)
        except KubeRefused as error:
            if error.status == _NOT_FOUND:
                raise _Impossible(f"claim {name} is not there any more") from None
            raise
        claim, document = read_resource_claim(raw), msgspec.json.decode(raw)
        container = container_of(claim.metadata.uid)
        shares = [share for share in placed.shares if share.container == container]
        if not shares:
            raise _Impossible(
                f"claim {name} was made anew since the pod came: make the pod anew as well"
            )
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
            document = await _put(
                self._api,
                path,
                document | {"metadata": document["metadata"] | {"finalizers": finalizers}},
            )
        consumer = {"resource": "pods", "name": placed.name, "uid": placed.pod}
        await _write_status(self._api, path, document, wanted, [consumer])
        return container


class ClaimRelease:
    """Lets claims go whose pods have ended."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._left: set[str] = set()
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Take note of a pod that had claims and has gone; give this to the reader."""
        if not isinstance(change.data, PodGone) or change.pod is None or change.refused:
            return
        if has_claims(change.pod.submitted):
            self._left.add(change.pod.submitted.namespace)
            self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Let claims go until cancelled: at first all that are left over, then of pods that go."""
        await reader.caught_up()
        path = CLAIMS
        while True:
            left, self._left = self._left, set()
            self._news.clear()
            try:
                for each in [path] if path else [_path(name) for name in sorted(left)]:
                    await self._look(each)
            except (KubeUnavailable, KubeRefused, msgspec.MsgspecError) as error:
                _log.warning("claims are not let go of: %s; trying again", error)
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
                    _log.warning("a claim cannot be read: %s", error)
                    continue
                if not of_ours(claim.results):
                    continue
                try:
                    for each in claim.status.reserved_for:
                        if await self._uses(claim, each):
                            break
                    else:
                        await self._let_go(claim, bytes(item))
                except KubeRefused as error:  # the next look at all claims tries again
                    _log.warning("claim %s is not let go of: %s", claim.key, error)

    async def _uses(self, claim: ResourceClaim, consumer: Consumer) -> bool:
        """Whether the pod is there; who else may have reserved a claim is for others to know."""
        if consumer.resource != "pods" or consumer.uid in self._state.pods:
            return True
        try:
            body = await self._api.get(pod_path(claim.metadata.namespace, consumer.name))
        except KubeRefused as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        pod = msgspec.json.decode(body, type=_Pod)
        return pod.metadata.uid == consumer.uid and pod.status.phase not in ENDED

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
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise
            self._left.add(claim.metadata.namespace)  # it changed: look again
            self._news.set()
        else:
            _log.info("claim %s is free again", claim.key)


class _Meta(Struct, frozen=True):
    uid: str = ""


class _Status(Struct, frozen=True):
    phase: str = ""


class _Pod(Struct, frozen=True):
    metadata: _Meta = _Meta()
    status: _Status = _Status()


def _path(namespace: str, name: str = "") -> str:
    path = f"{API}/namespaces/{quote(namespace, safe='')}/resourceclaims"
    return f"{path}/{quote(name, safe='')}" if name else path


async def _put(api: KubeApi, path: str, document: Json) -> Json:
    """Write the object as it was read but for our change; the object as it is then.

    Raises:
        KubeUnavailable, KubeRefused: it is as it was, or nobody knows.
    """
    kind = {"apiVersion": API.removeprefix("/apis/"), "kind": "ResourceClaim"}
    body = _encode(document | kind)  # what comes in a list does not say what it is
    answer = await api.request("PUT", path, body=body, timeout_s=_TRY_TIMEOUT_S)
    if not answer.ok:
        raise answer.refusal()
    found: Json = msgspec.json.decode(answer.body)
    return found


async def _write_status(
    api: KubeApi, path: str, document: Json, allocated: Json | None, reserved: list[Json]
) -> Json:
    status = dict(document.get("status") or {})
    status.pop("devices", None)  # of the allocation before
    status |= {"allocation": allocated, "reservedFor": reserved}
    return await _put(api, f"{path}/status", document | {"status": status})
