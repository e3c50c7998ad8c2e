"""Binds pods with one `pods/binding` call, and evicts them like kube-scheduler.

The call carries the annotations, so binding and annotations change in one write. Invariants: after
a call with an unknown outcome, the binder reads the pod before it reports anything. A pod that this
attempt has bound to its node is always reported as bound."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from apportion.binder.binding import Bound, Failed, Outcome
from apportion.binder.kubernetes.allocatable import Allocatable
from apportion.binder.kubernetes.claims import ClaimBinding, VolumeBinding, has_claims
from apportion.binder.kubernetes.node_lock import NodeLocks
from apportion.core.explain.text import words
from apportion.core.ledger.moments import text_of
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.workloads.adoption.placement_annotations import (
    ATTEMPT,
    DELETED_AT,
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
from apportion.runtime.kube.pods import PodNow, read_pod
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas import PodEvicted, PodPlaced, PodResized

FIRST = 16.0
LEAST = 1.0
# An API server handles 200 concurrent writes of all its clients by default. Each request has its
# own connection, which costs the server as much as two bindings.
MOST = 64.0
PROMPT_S = 0.1
SLOW_S = 1.0
LESS = 0.7
CALM_S = 0.5  # after a reduction, ignore slow answers to requests from before it
TRY_TIMEOUT_S = 6.0
BACK_OFF = BackOff(0.1, 2.0)
AGAIN = BackOff(0.2, 12.0)  # pause before the next binding of a pod whose placements keep failing
_CREATED = 201
_NO_ANNOTATIONS: Mapping[str, str] = {}
# may be fixed by others: credentials, permissions, or a pod that the watcher will remove
_PASSING = (401, 403, 404)


class Pace:
    """Limits concurrent requests to the API server, and adapts the limit to its response times.

    Callers enter `turn` before each request, and call `answered` or `refused` after it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calm_until = 0.0
        self._doubling = True
        self.limit = FIRST
        self.in_flight = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free slot, in order of arrival, and occupy it during the `with` block."""
        if self.in_flight >= int(self.limit) or self._waiting:
            ahead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ahead)
            try:
                await ahead
            except asyncio.CancelledError:
                if ahead.done() and not ahead.cancelled():
                    self._release()  # a slot was given to this cancelled task
                raise
        else:
            self.in_flight += 1
        try:
            yield
        finally:
            self._release()

    def answered(self, took_s: float) -> None:
        """Adapt the limit to an answer that took `took_s` seconds."""
        if took_s > SLOW_S:
            self.refused()
        elif took_s < PROMPT_S:
            more = 1.0 if self._doubling else 1 / self.limit
            self.limit = min(self.limit + more, MOST)

    def refused(self) -> None:
        """Lower the limit, because the server was slow, overloaded or did not answer."""
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


_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Unclear(NamedTuple):
    """Outcome of a request that may or may not have succeeded, and must be repeated."""

    pause_s: float


class KubernetesTarget:
    """A `Target` that binds and evicts pods through one API server."""

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
        self._api = api
        self._allocatable = allocatable
        self._state = state
        self._pace = pace
        self._clock = clock
        self._volumes = VolumeBinding(api, state, clock)
        self._claims = ClaimBinding(api) if dra else None
        self.locks = NodeLocks(api, state, clock)

    async def bind(self, placed: PodPlaced) -> Outcome:
        """Bind the pod, retrying until there is an outcome. The caller sets a timeout."""
        node = self._state.nodes.get(placed.node)
        if node is None or node.gone:
            return await self._gone(placed)
        if placed.attempt > 1:
            await self._clock.pause(AGAIN.after(placed.attempt - 1))
        pod = self._state.pods.get(placed.pod)
        if pod is None or pod.placement is None or pod.placement.attempt != placed.attempt:
            return Failed("the placement was withdrawn", final=False)
        lacking = await self._prepared(placed, pod, node)
        if lacking is not None:
            return lacking
        binding = self._binding(pod, placed, node)
        failures = 0
        while isinstance(outcome := await self._try(placed, binding), _Unclear):
            failures += 1
            await self._clock.pause(max(BACK_OFF.after(failures), outcome.pause_s))
        if isinstance(outcome, Failed) and not outcome.unknown:
            await self.locks.release(placed, pod.submitted.dialect, node)
        if isinstance(outcome, Bound) and outcome.earlier:
            await self.locks.release(placed, pod.submitted.dialect, node, served=True)
        return outcome

    async def _prepared(self, placed: PodPlaced, pod: PodState, node: NodeState) -> Outcome | None:
        """Prepare what the pod needs before it is bound. Return None, or the first failure."""
        steps: list[Callable[[], Awaitable[Failed | None]]] = []
        if pod.submitted.volume_claims:
            steps.append(partial(self._volumes.ready, pod, placed.attempt, node))
        if has_claims(pod.submitted):
            if self._claims is None:
                why = "the pod has ResourceClaims; start the binder with --dra"
                return Failed(why, final=False)
            steps.append(partial(self._claims.ready, placed, node))
        if self._allocatable is not None and not node.foreign_plugin:
            steps.append(partial(self._allocatable.ready, pod, node))
        if placed.shares:
            steps.append(partial(self.locks.take, placed, pod.submitted.dialect, node))
        for step in steps:
            lacking = await self._lacking(placed, step())
            if lacking is not None:
                return lacking
        return None

    async def _lacking(self, placed: PodPlaced, ready: Awaitable[Failed | None]) -> Outcome | None:
        """Await `ready`, a step of the preparation. Return None on success, else the outcome.

        Before a final failure, read the pod, because an earlier call may have bound it."""
        try:
            problem = await ready
            if problem is None or not problem.final:
                return problem
            outcome = await self._look(placed, KubeRefused(0, "", problem.message))
        except KubeUnavailable as error:
            return Failed(str(error), final=False, unknown=True)
        return problem if isinstance(outcome, _Unclear) else outcome

    async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
        """Evict the pod, write the reason, and nominate a node for the preemptor.

        With `later`, in microseconds since 1970, do not delete the pod yet, and write when it will
        be deleted. Source: kube-scheduler's preemption (condition DisruptionTarget, the pod's grace
        period)."""
        path = pod_path(evicted.namespace, evicted.name)
        try:
            # Controllers do not count the end of a pod with this condition as a failure.
            condition = {"type": "DisruptionTarget", "status": "True"}
            condition |= {"reason": "PreemptionByScheduler", "message": words.eviction(evicted)}
            status = {"conditions": [condition]}
            notes = {} if later is None else {DELETED_AT: text_of(later)}
            await self._patch_status(evicted.namespace, evicted.name, evicted.pod, status, notes)
            if later is None:
                uid = {"uid": evicted.pod}
                body = _encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": uid})
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
        """Write the new shares as annotations, through `pods/status`, which RBAC permits."""
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
        self,
        namespace: str,
        name: str,
        uid: str,
        status: Mapping[str, object],
        annotations: Mapping[str, str] = _NO_ANNOTATIONS,
    ) -> None:
        document = {"metadata": {"uid": uid, "annotations": annotations}, "status": status}
        answer = await self._patch(namespace, name, document)
        if not answer.ok:
            _log.info("status of pod %s/%s not updated: %s", namespace, name, answer.refusal())

    async def _patch(self, namespace: str, name: str, document: Mapping[str, object]) -> Answer:
        path, body = f"{pod_path(namespace, name)}/status", _encode(document)
        return await self._api.request(
            "PATCH", path, body=body, content_type=MERGE_PATCH, timeout_s=TRY_TIMEOUT_S
        )

    async def _gone(self, placed: PodPlaced) -> Outcome:
        """Return the outcome for a pod on a removed node: bound, if an earlier call bound it.

        Otherwise the bind has failed, but may be retried: an earlier call may still take effect."""
        left = KubeRefused(0, "", f"node {placed.node} was removed from the cluster")
        try:
            outcome = await self._look(placed, left)
        except KubeUnavailable as error:
            return Failed(f"{left.message}; {error}", final=False, unknown=True)
        if isinstance(outcome, _Unclear):
            return Failed(left.message, final=False)
        return outcome

    async def _try(self, placed: PodPlaced, binding: bytes) -> Outcome | _Unclear:
        path = f"{pod_path(placed.namespace, placed.name)}/binding"
        async with self._pace.turn():
            began_s = self._clock.monotonic()
            try:
                answer = await self._api.request(
                    "POST", path, body=binding, timeout_s=TRY_TIMEOUT_S
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
            # Volcano's plugin would later take such a pod for the one that starts, if it came back.
            served=not node.foreign_plugin,
        )

    def _binding(self, pod: PodState, placed: PodPlaced, node: NodeState) -> bytes:
        metadata = {"name": placed.name, "namespace": placed.namespace, "uid": placed.pod}
        annotations = {"annotations": self._annotations(pod, placed, node)}
        target = {"apiVersion": "v1", "kind": "Node", "name": placed.node}
        kind = {"apiVersion": "v1", "kind": "Binding"}
        return _encode({**kind, "metadata": {**metadata, **annotations}, "target": target})

    async def _refused(self, placed: PodPlaced, answer: Answer) -> Outcome | _Unclear:
        refusal = answer.refusal()
        if answer.status != CONFLICT:
            return Failed(str(refusal), final=answer.status not in _PASSING)
        try:
            return await self._look(placed, refusal)
        except KubeUnavailable:
            return _Unclear(0.0)

    async def _look(self, placed: PodPlaced, refusal: KubeRefused) -> Outcome | _Unclear:
        try:
            body = await self._api.get(pod_path(placed.namespace, placed.name))
        except KubeRefused as error:
            return Failed(str(error), final=False, unknown=error.status != NOT_FOUND)
        return _found(placed, read_pod(body), refusal)


def _found(placed: PodPlaced, pod: PodNow, refusal: KubeRefused) -> Outcome | _Unclear:
    if pod.metadata.uid != placed.pod:
        return Failed("another pod has this name now", final=False)
    if not pod.spec.node_name:
        if pod.metadata.deletion_timestamp is not None:
            return Failed("the pod is being deleted", final=False)
        return _Unclear(0.0)  # it changed while it was being bound
    if pod.spec.node_name != placed.node:
        return Failed(f"already bound to {pod.spec.node_name}: {refusal.message}", final=True)
    attempt = pod.notes.get(ATTEMPT)
    if attempt != str(placed.attempt):
        return Failed(
            f"already bound to {placed.node} by "
            f"{f'attempt {attempt}' if attempt else 'another scheduler'}",
            final=True,
        )
    return Bound(earlier=True)
