"""A binding in Kubernetes: one `pods/binding` call, whose annotations go onto the pod with it. An
eviction is one deletion, as kube-scheduler makes it.

So a pod and what the devices' plugins must know of it change in one write or not at all.
Invariants: a call that may have been done is looked up before anything is said of it; a pod that is
bound where it was placed, by this attempt, is bound, however often that is asked; as many requests
are with the API server at once as it answers promptly (`Pace`)."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from apportion.binder.binding import Bound, Failed, Outcome
from apportion.binder.kubernetes.allocatable import Allocatable
from apportion.binder.kubernetes.claims import ClaimBinding, VolumeBinding, has_claims
from apportion.core.explain.text import words
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.workloads.adoption.placement_annotations import (
    ATTEMPT,
    NEXT_PROCESS,
    RESIZED_CORES,
    annotations_for,
)
from apportion.runtime.kube.client import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    Answer,
    KubeApi,
    KubeRefused,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas import PodEvicted, PodPlaced, PodResized
from apportion_schemas.decoding import from_outside

FIRST = 16.0
LEAST = 1.0
MOST = 64.0
"""An API server lets 200 writes in by default, of all its clients; and each that is under way has a
connection of its own, whose making costs the server as much as two bindings."""
PROMPT_S = 0.1
SLOW_S = 1.0
LESS = 0.7
CALM_S = 0.5
"""After a step down, answers to what was sent before it say nothing new."""
TRY_TIMEOUT_S = 6.0
BACK_OFF = BackOff(0.1, 2.0)
AGAIN = BackOff(0.2, 12.0)
"""A pod whose placements come to nothing over and over rests before each next binding."""
_CREATED = 201
_PASSING = (401, 403, 404)
"""What may be mended without us: credentials, rights, a pod of which the watcher will tell."""


class Pace:
    """A limit that adapts; take a `turn` for each request and say how it was `answered`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calm_until = 0.0
        self._doubling = True
        self.limit = FIRST
        self.in_flight = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for room, in the order of asking, and take it."""
        if self.in_flight >= int(self.limit) or self._waiting:
            ahead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ahead)
            try:
                await ahead
            except asyncio.CancelledError:
                if ahead.done() and not ahead.cancelled():
                    self._release()  # room was given to one who no longer wants it
                raise
        else:
            self.in_flight += 1
        try:
            yield
        finally:
            self._release()

    def answered(self, took_s: float) -> None:
        """The server answered within so many seconds: how many may be under way follows."""
        if took_s > SLOW_S:
            self._slower()
        elif took_s < PROMPT_S:
            more = 1.0 if self._doubling else 1 / self.limit
            self.limit = min(self.limit + more, MOST)

    def refused(self) -> None:
        """The server said that it has too much to do, or nothing at all."""
        self._slower()

    def _slower(self) -> None:
        self._doubling = False
        now_s = self._clock.monotonic()
        if now_s >= self._calm_until:
            self._calm_until = now_s + CALM_S
            self.limit = max(self.limit * LESS, LEAST)

    def _release(self) -> None:
        self.in_flight -= 1
        while self._waiting and self.in_flight < int(self.limit):
            ahead = self._waiting.popleft()
            if not ahead.done():
                self.in_flight += 1
                ahead.set_result(None)


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


_decode_pod = from_outside(msgspec.json.Decoder(_Pod).decode)
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Unclear(NamedTuple):
    """The request may have been done, and is to be made again."""

    pause_s: float


class KubernetesTarget:
    """A `Target` over one API server."""

    def __init__(
        self,
        api: KubeApi,
        state: State,
        pace: Pace,
        clock: Clock,
        allocatable: Allocatable | None = None,
        *,
        dra: bool = False,
    ) -> None:
        """Without `allocatable`, nodes show what they show. `dra`: pods may have claims."""
        self._api = api
        self._allocatable = allocatable
        self._state = state
        self._pace = pace
        self._clock = clock
        self._volumes = VolumeBinding(api, state, clock)
        self._claims = ClaimBinding(api) if dra else None

    async def bind(self, placed: PodPlaced) -> Outcome:
        """See `Target`. Goes on until there is an outcome; the caller has the patience."""
        node = self._state.nodes.get(placed.node)
        if node is None or node.gone:
            return await self._gone(placed)
        if placed.attempt > 1:
            await self._clock.pause(AGAIN.after(placed.attempt - 1))
        pod = self._state.pods.get(placed.pod)
        if pod is None or pod.placement is None or pod.placement.attempt != placed.attempt:
            return Failed("the ledger has let go of the placement", final=False)
        if pod.submitted.volume_claims:
            lacking = await self._lacking(placed, self._volumes.ready(pod, placed.attempt, node))
            if lacking is not None:
                return lacking
        if has_claims(pod.submitted):
            if self._claims is None:
                return Failed(
                    "the pod has ResourceClaims: start the binder with --dra", final=False
                )
            lacking = await self._lacking(placed, self._claims.ready(placed, node))
            if lacking is not None:
                return lacking
        if self._allocatable is not None:
            await self._allocatable.ready(pod, node)
        binding = self._binding(pod, placed, node)
        failures = 0
        while True:
            outcome = await self._try(placed, binding)
            if not isinstance(outcome, _Unclear):
                return outcome
            failures += 1
            await self._clock.pause(max(BACK_OFF.after(failures), outcome.pause_s))

    async def _lacking(self, placed: PodPlaced, ready: Awaitable[Failed | None]) -> Outcome | None:
        """What is to be said of a pod that lacks volumes or claims; it may have been bound before.

        None once all that is `ready` looks for is there."""
        try:
            problem = await ready
            if problem is None or not problem.final:
                return problem
            outcome = await self._look(placed, KubeRefused(0, "", problem.message))
        except KubeUnavailable as error:
            return Failed(str(error), final=False, unknown=True)
        return problem if isinstance(outcome, _Unclear) else outcome

    async def evict(self, evicted: PodEvicted) -> Failed | None:
        """See `Target`. The pod says why it goes, and the one for which it goes where it will be.

        Source: kube-scheduler's preemption. The pod gets the condition DisruptionTarget, is deleted
        with the grace of its own spec, and the other one gets `status.nominatedNodeName`."""
        path = pod_path(evicted.namespace, evicted.name)
        try:
            # A condition of a pod that goes for another: controllers count it as no failure.
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": words.eviction(evicted),
            }
            status = {"conditions": [condition]}
            await self._patch_status(evicted.namespace, evicted.name, evicted.pod, status)
            body = _encode(
                {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": evicted.pod}}
            )
            answer = await self._api.request("DELETE", path, body=body, timeout_s=TRY_TIMEOUT_S)
            if not answer.ok and answer.status not in (NOT_FOUND, CONFLICT):
                return Failed(str(answer.refusal()), final=False)
            namespace, _, name = evicted.beneficiary_name.partition("/")
            where = {"nominatedNodeName": evicted.nominated}
            await self._patch_status(namespace, name, evicted.beneficiary, where)
        except KubeUnavailable as error:
            return Failed(str(error), final=False, unknown=True)
        return None

    async def resize(self, resized: PodResized) -> Failed | None:
        """See `Target`: the annotations are those of a binding with these shares, and
        `RESIZED_CORES`.

        The API server takes annotations of a pod with its status, for which we have the right."""
        pod, node = self._state.pods.get(resized.pod), self._state.nodes.get(resized.node)
        if pod is None or pod.placement is None or node is None:
            return None
        annotations = self._annotations(pod, placed_of(pod, pod.placement), node)
        annotations = {**annotations, RESIZED_CORES: NEXT_PROCESS}
        document = {"metadata": {"uid": resized.pod, "annotations": annotations}}
        try:
            answer = await self._patch(resized.namespace, resized.name, document)
        except KubeUnavailable as error:
            return Failed(str(error), final=False, unknown=True)
        if answer.ok:
            return None
        return Failed(str(answer.refusal()), final=answer.status in (NOT_FOUND, CONFLICT))

    async def _patch_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, object]
    ) -> None:
        """Say this of the pod, for people and controllers: nothing here depends on it.

        Raises KubeUnavailable: nobody answered."""
        document = {"metadata": {"uid": uid}, "status": status}
        answer = await self._patch(namespace, name, document)
        if not answer.ok:
            _log.info("pod %s/%s: its status is left: %s", namespace, name, answer.refusal())

    async def _patch(self, namespace: str, name: str, document: Mapping[str, object]) -> Answer:
        return await self._api.request(
            "PATCH",
            f"{pod_path(namespace, name)}/status",
            body=_encode(document),
            content_type=MERGE_PATCH,
            timeout_s=TRY_TIMEOUT_S,
        )

    async def _gone(self, placed: PodPlaced) -> Outcome:
        """What became of the placement on a node that has left: a call before may have bound it.

        A pod that is not bound is not given up at once, for such a call may take effect yet: it is
        looked for as often as any binding is tried, which takes longer than the API server may."""
        left = KubeRefused(0, "", f"node {placed.node} has left the cluster")
        try:
            outcome = await self._look(placed, left)
        except KubeUnavailable as error:
            return Failed(f"{left.message}; {error}", final=False, unknown=True)
        if isinstance(outcome, _Unclear):
            return Failed(left.message, final=False)
        return outcome

    async def _try(self, placed: PodPlaced, binding: bytes) -> Outcome | _Unclear:
        async with self._pace.turn():
            began_s = self._clock.monotonic()
            try:
                answer = await self._api.request(
                    "POST",
                    f"{pod_path(placed.namespace, placed.name)}/binding",
                    body=binding,
                    timeout_s=TRY_TIMEOUT_S,
                )
            except KubeUnavailable:
                self._pace.refused()
                return _Unclear(0.0)
            if answer.passing:
                self._pace.refused()
                return _Unclear(answer.retry_after_s)
            self._pace.answered(self._clock.monotonic() - began_s)
        if answer.status == _CREATED:
            return Bound()
        return await self._refused(placed, answer)

    def _annotations(self, pod: PodState, placed: PodPlaced, node: NodeState) -> dict[str, str]:
        return annotations_for(
            pod.submitted,
            placed,
            revision=pod.placed_revision,
            devices={name: found.device for name, found in node.by_id.items()},
            now_ns=int(self._clock.now().timestamp() * 1_000_000) * 1_000,
            configuration=self._state.configuration,
        )

    def _binding(self, pod: PodState, placed: PodPlaced, node: NodeState) -> bytes:
        annotations = self._annotations(pod, placed, node)
        return _encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "name": placed.name,
                    "namespace": placed.namespace,
                    "uid": placed.pod,
                    "annotations": annotations,
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": placed.node},
            }
        )

    async def _refused(self, placed: PodPlaced, answer: Answer) -> Outcome | _Unclear:
        refusal = answer.refusal()
        if answer.status != CONFLICT:
            return Failed(str(refusal), final=answer.status not in _PASSING)
        try:
            return await self._look(placed, refusal)
        except KubeUnavailable:
            return _Unclear(0.0)

    async def _look(self, placed: PodPlaced, refusal: KubeRefused) -> Outcome | _Unclear:
        """What a pod is that could not be bound; a refusal to tell says at most that it is gone.

        Raises KubeUnavailable: nobody answered."""
        try:
            body = await self._api.get(pod_path(placed.namespace, placed.name))
        except KubeRefused as error:
            return Failed(str(error), final=False, unknown=error.status != NOT_FOUND)
        return _found(placed, _decode_pod(body), refusal)


def _found(placed: PodPlaced, pod: _Pod, refusal: KubeRefused) -> Outcome | _Unclear:
    if pod.metadata.uid != placed.pod:
        return Failed("another pod has its name by now", final=False)
    if not pod.spec.node_name:
        if pod.metadata.deletion_timestamp is not None:
            return Failed("the pod is being deleted", final=False)
        return _Unclear(0.0)  # it changed while it was being bound
    if pod.spec.node_name != placed.node:
        return Failed(f"bound to {pod.spec.node_name} already: {refusal.message}", final=True)
    attempt = (pod.metadata.annotations or {}).get(ATTEMPT)
    if attempt != str(placed.attempt):
        return Failed(
            f"bound to {placed.node} already, by {f'attempt {attempt}' if attempt else 'another'}",
            final=True,
        )
    return Bound()
