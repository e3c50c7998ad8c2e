"""Writes Kubernetes events of pods, and the pods' condition PodScheduled.

If a pod waits, only its newest reason is written; all other events are written. Events of pods that
wait or are idle are repeated before they expire. Names and contents come from the ledger, so
several binders write an event once. Invariants: bindings have priority over events. Every bound pod
that still exists gets its event eventually. An event that the API server keeps refusing does not
delay other events. The queue is limited. If the queue is full when a pod is bound, the event is
later made from the state."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Literal
from zlib import crc32

import msgspec
from msgspec import Struct

from apportion.binder.kubernetes.target import Pace
from apportion.core.answers.reads import FailedDevice
from apportion.core.explain.health import failed_devices, failed_words, failure, pods_on
from apportion.core.explain.text import event_text, words
from apportion.core.explain.why import event_words
from apportion.core.ledger.fold import Change
from apportion.core.ledger.handlers.idle import IdleNews, idle_pod
from apportion.core.ledger.state import PENDING, NodeState, Phase, PodState, State
from apportion.core.placement.feasibility.causes import of_no_node
from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.runtime.kube.client import (
    CONFLICT,
    MERGE_PATCH,
    Answer,
    KubeApi,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    DeviceHealthChanged,
    DevicesRegistered,
    NodeObserved,
    NodeReported,
    PodBound,
    PodEvicted,
    PodRefused,
    PodRejected,
    PodResized,
    PodSubmitted,
    RefusalCode,
    ShareBreached,
)
from apportion_schemas.decoding import from_outside

UNTOLD_MAX = 10_000
TELLERS = 2
TRIES = 5
PAUSE_S = 0.5
PAUSE_MAX_S = 5.0  # limit for Retry-After, because one event must not delay the others for hours
GIVE_WAY_S = 0.1
GIVE_WAY_TIMES = 20
RECALLED_S = 300.0  # the event of a pod bound this long before our start may be missing
RENEW_SLOTS = 25
RENEW_SLOT_S = 60.0
# how often a waiting pod's event is renewed, well before it expires
RENEW_S = RENEW_SLOTS * RENEW_SLOT_S
RENEWED_MAX = 600  # events renewed per slot
MESSAGE_MAX = 1000  # bytes, of the 1,024 that the API server accepts
NAME_MAX = 253 - 1 - 16
COMPONENT = "apportion"
SCHEDULED = "Scheduled"
FAILED = "FailedScheduling"
UNSCHEDULABLE = "Unschedulable"
REVISION = f"{PREFIX}revision"
HELD_S = 0.5  # interval of checks whether held pods may become `Unschedulable`
DECLARED_WITHIN_S = 15.0  # undeclared gangs are reported after one to two of these intervals

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Tale(Struct, frozen=True, kw_only=True):
    """A Kubernetes event to write about a pod."""

    uid: str
    namespace: str
    name: str
    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    revision: int = 0  # distinguishes repeated events
    condition: str = ""  # the reason of PodScheduled=False, if the pod gets this condition
    renews: bool = False  # repeated, because it still applies


class _EventMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Event(Struct, frozen=True, rename="camel"):
    metadata: _EventMeta
    count: int = 1
    last_timestamp: str | None = None

    @property
    def revision(self) -> int:
        """Return the ledger revision for which this event was last written."""
        text = (self.metadata.annotations or {}).get(REVISION, "")
        return int(text) if text.isdecimal() else 0


_decode_event = from_outside(msgspec.json.Decoder(_Event).decode)


class Telling:
    """Queues Kubernetes events about pods and writes them, warnings first."""

    def __init__(
        self, api: KubeApi, state: State, clock: Clock, metrics: Metrics, *, pace: Pace,
        holds: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        """`holds`: whether the pod with this uid must not become `Unschedulable` yet."""
        self._holds = holds
        self._held: dict[str, Tale] = {}
        self._api = api
        self._pace = pace
        self._state = state
        self._undeclared = UndeclaredGangs(state)
        self._failed = FailedDevices(state)
        self._idle = IdleNews(state)
        self._clock = clock
        self._bad: dict[str, Tale] = {}
        self._good: dict[str, Tale] = {}
        self._failing: dict[str, Tale] = {}
        self._news = asyncio.Event()
        self._recall = range(0)
        self._live = False
        self._reported = metrics.counter(
            "apportion_reported_total", "Kubernetes Events about pods, by outcome.", ("outcome",)
        )
        metrics.gauge(
            "apportion_unreported",
            "Number of Kubernetes Events about pods that are not written yet.",
        ).set_function(lambda: sum(map(len, (self._bad, self._good, self._failing, self._held))))

    def observe(self, change: Change) -> None:
        """Record a change of the fold. Pass this method to the reader."""
        if not self._live or change.refused:
            return
        data = change.data
        for pod in self._idle.news(change):
            self._note(_idle(self._state, pod, self._state.revision))
        if isinstance(data, PodRejected):
            self._note(_rejected(data))
        elif isinstance(data, PodEvicted) and change.pod is not None:
            # Both pods get an event: the victim and the preemptor.
            said, revision = words.eviction(data), self._state.revision
            self._note(_tale(change.pod.submitted, "Preempted", said, revision, kind="Normal"))
            other = self._state.pods.get(data.beneficiary)
            if other is not None:
                self._note(_tale(other.submitted, "Preempting", said, revision, kind="Normal"))
        elif isinstance(data, HEALTH) and change.node is not None:
            revision = self._state.revision
            for pod, device in self._failed.news(change.node):
                if device:
                    said = f"its device {words.device_words(device)} has recovered"
                    about = pod.submitted
                    self._note(_tale(about, "DeviceRecovered", said, revision, kind="Normal"))
                self._note(_failed(self._state, pod, revision))
        elif change.pod is not None:
            self._note(_of(self._state, change.pod, data, self._state.revision))

    def _note(self, tale: Tale | None) -> None:
        if tale is None:
            return
        self._failing.pop(_place_of(tale), None)
        self._held.pop(_place_of(tale), None)
        self._put(tale, self._bad if tale.kind == "Warning" else self._good)

    def _put(self, tale: Tale, waiting: dict[str, Tale]) -> None:
        key = _place_of(tale)
        waiting.pop(key, None)
        waiting[key] = tale
        if len(waiting) > UNTOLD_MAX:
            oldest = waiting.pop(next(iter(waiting)))
            if oldest.reason == SCHEDULED:
                begins = (
                    min(self._recall.start, oldest.revision) if self._recall else oldest.revision
                )
                self._recall = range(begins, max(self._recall.stop, oldest.revision + 1))
            else:
                self._reported.labels("dropped").inc()
        self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Write the events and conditions of pods until cancelled."""
        await reader.caught_up()
        # Changes are reported from now on; of earlier ones, only those that still affect a pod.
        self._live = True
        for rejected in self._state.rejected.values():
            self._note(_rejected(rejected))
        since, next_one = self._ago(RECALLED_S), self._state.revision + 1
        recent = [next_one]
        for pod in self._state.pods.values():
            if pod.phase is Phase.PENDING and pod.refusal is not None:
                self._note(_of(self._state, pod, pod.refusal, pod.refused_revision))
            elif pod.bound_revision and not pod.adopted and pod.placed_time >= since:
                recent.append(pod.bound_revision)
        self._recall = range(min(recent), next_one)
        for pod in self._failed.at_first():
            self._note(_failed(self._state, pod, 0))
        for pod in self._idle.news():
            self._note(_idle(self._state, pod, 0))
        async with asyncio.TaskGroup() as tellers:
            for number in range(TELLERS):
                tellers.create_task(self._tell_all(), name=f"event writer {number}")
            tellers.create_task(self._look_for_undeclared(), name="look for undeclared gangs")
            tellers.create_task(self._renew(), name="renew events")
            if self._holds is not None:
                tellers.create_task(self._release(self._holds), name="release held events")

    async def _release(self, holds: Callable[[str], bool]) -> None:
        while True:
            await self._clock.pause(HELD_S)
            for uid in [uid for uid in self._held if not holds(uid)]:
                self._put(self._held.pop(uid), self._bad)

    async def _look_for_undeclared(self) -> None:
        while True:
            await self._clock.pause(DECLARED_WITHIN_S)
            for pod in self._undeclared.look():
                self._note(_undeclared(pod))

    async def _renew(self) -> None:
        for number in itertools.count():
            await self._clock.pause(RENEW_SLOT_S)
            turn, slot = divmod(number, RENEW_SLOTS)
            state = self._state
            refused = (
                uid
                for uid, pod in state.pods.items()
                if pod.phase is Phase.PENDING and pod.refusal is not None
            )
            undeclared = {pod.submitted.uid: pod for pod in self._undeclared.named()}
            idle = [
                uid
                for uid in state.idle or ()
                if (pod := state.pods.get(uid)) is not None and idle_pod(state, pod) is not None
            ]
            every = dict.fromkeys(itertools.chain(state.rejected, refused, undeclared, idle))
            # Each pod has the same slot in every binder.
            due = [uid for uid in every if crc32(uid.encode()) % RENEW_SLOTS == slot]
            begin = turn * RENEWED_MAX % max(1, len(due))  # continue after the previous turn
            for uid in (due[begin:] + due[:begin])[:RENEWED_MAX]:
                rejected, pod = state.rejected.get(uid), state.pods.get(uid)
                if rejected is not None:
                    tale: Tale | None = _rejected(rejected)
                elif uid in undeclared:
                    tale = _undeclared(undeclared[uid])
                elif pod is not None and pod.placement is not None:
                    tale = _idle(state, pod, 0)
                elif pod is not None:
                    tale = _of(state, pod, pod.refusal, pod.refused_revision)
                else:
                    continue
                if tale is not None and not self._is_queued(tale):
                    self._note(msgspec.structs.replace(tale, renews=True))

    async def _tell_all(self) -> None:
        while True:
            if not (self._bad or self._good) and self._recall:
                # The API server recognises events that were written already.
                span, state = self._recall, self._state
                pods = [pod for pod in state.pods.values() if pod.bound_revision in span]
                pods.sort(key=lambda pod: pod.bound_revision)
                self._recall = range(0)
                for pod in pods[:UNTOLD_MAX]:
                    if not pod.adopted:
                        self._note(_scheduled(pod, pod.bound_revision))
                if len(pods) > UNTOLD_MAX:
                    self._recall = range(pods[UNTOLD_MAX].bound_revision, span.stop)
            if not self._bad and self._good:
                # Normal events yield for a while if bindings use most of the pace.
                for _ in range(GIVE_WAY_TIMES):
                    if self._bad or 2 * self._pace.in_flight < self._pace.limit:
                        break
                    await self._clock.pause(GIVE_WAY_S)
            for waiting in (self._bad, self._good, self._failing):
                if waiting:
                    tries = 1 if waiting is self._failing else TRIES  # new events go first
                    await self._tell(waiting.pop(next(iter(waiting))), tries)
                    break
            else:
                self._news.clear()
                await self._news.wait()

    async def _tell(self, tale: Tale, tries: int) -> None:
        if tale.condition and not self._still_waits(tale.uid):
            return
        unschedulable = tale.condition == UNSCHEDULABLE and not tale.renews
        if unschedulable and self._holds is not None and self._holds(tale.uid):
            self._put(tale, self._held)
            return
        path = f"/api/v1/namespaces/{tale.namespace}/events"
        answer = await self._send("POST", path, self._event(tale), tries=tries)
        if answer is not None and answer.status == CONFLICT and (tale.revision or tale.renews):
            answer = await self._say_again(f"{path}/{_event_name(tale)}", tale)
        if answer is None:
            # The API server failed: retry once the other queues are empty.
            if not self._is_queued(tale):
                self._put(tale, self._failing)
            return
        self._count(answer)
        if tale.renews:
            return
        if tale.condition and self._still_waits(tale.uid):  # it may be bound by now
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": tale.condition,
                "message": tale.message,
            }
            pod = self._state.pods.get(tale.uid)
            if pod is not None:
                condition["lastTransitionTime"] = f"{pod.submitted_time[:19]}Z"
            nominated = self._state.nominated.get(tale.uid)  # None removes the field
            status = {"conditions": [condition], "nominatedNodeName": nominated}
            # A strategic merge patch keeps the pod's other conditions.
            body = _encode({"metadata": {"uid": tale.uid}, "status": status})
            path = f"{pod_path(tale.namespace, tale.name)}/status"
            self._count(await self._send("PATCH", path, body))

    async def _say_again(self, path: str, tale: Tale) -> Answer | None:
        """Increase the count of an existing event, unless the event is up to date."""
        answer = await self._send("GET", path)
        if answer is None or not answer.ok:
            return answer
        known = _decode_event(answer.body)
        is_known = known.revision >= tale.revision
        if tale.renews:
            is_known = (known.last_timestamp or "") > self._ago(RENEW_S / 2)
        if is_known:
            return Answer(CONFLICT, b"")
        meta = {
            "resourceVersion": known.metadata.resource_version,
            "annotations": {REVISION: str(max(tale.revision, known.revision))},
        }
        body = {"metadata": meta, "count": known.count + 1, "lastTimestamp": self._ago(0)}
        return await self._send("PATCH", path, _encode(body))

    async def _send(
        self, method: str, path: str, body: bytes | None = None, *, tries: int = TRIES
    ) -> Answer | None:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        for _ in range(tries):
            try:
                answer = await self._api.request(method, path, body=body, content_type=kind)
            except KubeUnavailable:
                await self._clock.pause(PAUSE_S)
                continue
            if answer.passing:
                await self._clock.pause(min(max(PAUSE_S, answer.retry_after_s), PAUSE_MAX_S))
                continue
            return answer
        return None

    def _count(self, answer: Answer | None) -> None:
        # Refused if the event exists already, or the pod or its namespace is gone: no retry.
        if answer is not None and not answer.ok and answer.body:
            _log.debug("event not written: %s", answer.refusal())
        outcome = "dropped" if answer is None else "told" if answer.ok else "known already"
        self._reported.labels(outcome).inc()

    def _is_queued(self, tale: Tale) -> bool:
        key = _place_of(tale)
        queues = self._bad, self._good, self._failing, self._held
        return any(key in queue for queue in queues)

    def _ago(self, span_s: float) -> str:
        return (self._clock.now() - timedelta(seconds=span_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _still_waits(self, uid: str) -> bool:
        pod = self._state.pods.get(uid)
        if pod is None:
            return uid in self._state.rejected
        return pod.phase is Phase.PENDING

    def _event(self, tale: Tale) -> bytes:
        now, namespace = self._ago(0), {"namespace": tale.namespace}
        annotations = {REVISION: str(tale.revision)}
        pod = {"apiVersion": "v1", "kind": "Pod", "name": tale.name, "uid": tale.uid}
        return _encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": _event_name(tale), "annotations": annotations, **namespace},
                "involvedObject": pod | namespace,
                "type": tale.kind,
                "reason": tale.reason,
                "message": tale.message,
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
        )


def _place_of(tale: Tale) -> str:
    """Return an event's key in the queue; a new event replaces a queued one with the same key."""
    return tale.uid if tale.condition else _event_name(tale)


def _event_name(tale: Tale) -> str:
    same = sha256(f"{tale.uid}/{tale.reason}/{tale.message}".encode())
    return f"{tale.name[:NAME_MAX]}.{same.hexdigest()[:16]}"


def _rejected(data: PodRejected) -> Tale:
    said = event_text.rejection_words(data)
    return _tale(data, "Rejected", said, 0, condition="Rejected")


def _of(state: State, pod: PodState, data: object, revision: int) -> Tale | None:
    about = pod.submitted
    match data:
        case PodRefused() if about.chooser:
            return None  # kube-scheduler reports the reason and sets the condition
        case PodRefused():
            said = event_words(state, pod, data)
            code = of_no_node(data)
            # Autoscalers add nodes for Unschedulable. Where no node could help, name the code.
            condition = code.value if code is not None else UNSCHEDULABLE
            return _tale(about, FAILED, said, revision, condition=condition)
        case BindFailed():
            return _tale(about, "FailedBinding", f"{data.node}: {data.message}", revision)
        case AllocationFailed():
            return _tale(about, "FailedAllocation", f"{data.node}: {data.message}", revision)
        case ShareBreached():
            return _tale(about, "ShareBreached", event_text.breach_words(data), revision)
        case PodBound():
            return _scheduled(pod, revision)
        case PodResized():
            families = event_text.families_of(about.shape.asks)
            held = event_text.shares_words(data.shares, families)
            said = f"resized to {held}; {event_text.CORES_LATER}"
            return _tale(about, "Resized", said, revision, kind="Normal")
    return None


def _scheduled(pod: PodState, revision: int) -> Tale | None:
    if pod.placement is None:
        return None
    families = event_text.families_of(pod.submitted.shape.asks)
    held = words.listed([
        event_text.share_words(share, families.get(share.container, ""))
        for share in pod.placement.shares
    ])  # fmt: skip
    message = f"bound to {pod.placement.node}: {held or 'no device'}"
    return _tale(pod.submitted, SCHEDULED, message, revision, kind="Normal")


def _undeclared(pod: PodState) -> Tale:
    said = words.undeclared(pod.submitted.group)
    revision = pod.submitted_revision
    code = RefusalCode.GANG_INCOMPLETE
    return _tale(pod.submitted, FAILED, said, revision, condition=code.value)


def _failed(state: State, pod: PodState, revision: int) -> Tale | None:
    failed = failed_devices(state, pod)
    return _tale(pod.submitted, "DeviceFailed", failed_words(failed), revision) if failed else None


def _idle(state: State, pod: PodState, revision: int) -> Tale | None:
    if idle_pod(state, pod) is None:
        return None
    said = words.idle_notice(state.configuration.idle, evictable=pod.submitted.evictable)
    return _tale(pod.submitted, "Idle", said, revision)


def _tale(
    about: PodSubmitted | PodRejected,
    reason: str,
    message: str,
    revision: int,
    *,
    kind: Literal["Normal", "Warning"] = "Warning",
    condition: str = "",
) -> Tale:
    encoded = message.encode()
    if len(encoded) > MESSAGE_MAX:
        message = encoded[: MESSAGE_MAX - 3].decode(errors="ignore") + "…"
    return Tale(
        uid=about.uid,
        namespace=about.namespace,
        name=about.name,
        kind=kind,
        reason=reason,
        message=message,
        revision=revision,
        condition=condition,
    )


# events by which a device may fail or recover
HEALTH = (DeviceHealthChanged, NodeObserved, NodeReported, DevicesRegistered)


class FailedDevices:
    """Remembers each node's failed devices, so that only new failures and recoveries are reported.

    A device has failed if it is unhealthy, or if its agent no longer reports it. Invariant: each
    failure is reported once, and a recovery only after its failure."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._failed: dict[str, dict[str, FailedDevice]] = {}

    def at_first(self) -> Iterator[PodState]:
        """Yield every pod that has a failed device now. Later changes come from `news`."""
        for node in self._state.nodes.values():
            for pod, _ in self.news(node):
                yield pod

    def news(self, node: NodeState) -> Iterator[tuple[PodState, str]]:
        """Yield each pod on a device that failed or recovered since the last call.

        Each pod comes with the id of its recovered device, or with "" if the device failed."""
        before = self._failed.pop(node.name, {})
        now = {each.device: each for each in map(failure, node.devices) if each is not None}
        if now:
            self._failed[node.name] = now
        for device in sorted(now.keys() | before.keys()):
            if now.get(device) != before.get(device):
                for pod in pods_on(node, device):
                    yield pod, "" if device in now else device


class UndeclaredGangs:
    """Remembers which gangs had no PodGroup at the last check, to report their pods.

    The PodGroup usually comes soon after the pods, so schedulers do not report the gang. If the
    PodGroup never comes, the owner of the pods needs an event. Invariant: a pod is reported once,
    after two checks."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._before: frozenset[str] = frozenset()
        self._named: set[str] = set()

    def look(self) -> Iterator[PodState]:
        """Yield pending pods whose gang had no PodGroup at this check and at the previous one."""
        groups = {
            name: group for name, group in self._state.groups.items() if group.observed is None
        }
        self._named.intersection_update(self._state.pods)
        for name in sorted(groups.keys() & self._before):
            for pod in groups[name].pods.values():
                if pod.phase is PENDING and pod.uid not in self._named:
                    self._named.add(pod.uid)
                    yield pod
        self._before = frozenset(groups)

    def named(self) -> Iterator[PodState]:
        """Yield pods that were reported and still wait for their gang's PodGroup."""
        for uid in self._named:
            pod = self._state.pods.get(uid)
            if pod is not None and pod.phase is PENDING:
                group = self._state.groups.get(pod.submitted.group)
                if group is not None and group.observed is None:
                    yield pod
