"""Group pending pods that have the same request, in queue order.

A group has one explanation: why no node takes its first pod. Invariant: every pending pod without
gates is in exactly one group."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import fields_of
from apportion.core.explain.causes import causes_say_all, refused_rows
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import queued_with_text
from apportion.core.explain.text.event_text import added_up, ask_words
from apportion.core.explain.views import gang_answer
from apportion.core.explain.why import with_never
from apportion.core.ledger.handlers.departures import awaited
from apportion.core.ledger.state import Phase, PodState, State, queue_of
from apportion.core.placement.feasibility.causes import Explained, is_unsuitable, without_gone
from apportion_schemas import RefusalCode

PODS_SHOWN: Final = 20  # pods of a group in an answer, unless more are requested
LINES_SHOWN: Final = 100  # groups in an answer, in queue order
Forecast = Callable[[PodState], reads.StartForecast | None]

_C = RefusalCode
# Causes of a pod's requirements on nodes, which pods without these do not share
OF_NODES: Final = frozenset((
    _C.NODE_LABELS_MISMATCH, _C.TAINT_NOT_TOLERATED, _C.CPU_INSUFFICIENT,
    _C.HOST_MEMORY_INSUFFICIENT, _C.EXTENDED_RESOURCE_INSUFFICIENT, _C.VOLUME_NODE_MISMATCH,
    _C.POD_AFFINITY_MISMATCH, _C.POD_ANTI_AFFINITY, _C.TOPOLOGY_SPREAD_EXCEEDED,
))  # fmt: skip


def namespaces_answer(state: State) -> reads.NamespacesAnswer:
    """Return the namespaces with live pods, and how many devices these use."""
    counts = Counter(pod.submitted.namespace for pod in state.pods.values())
    held: Counter[str] = Counter()
    for pod in state.pods.values():
        if pod.placement is not None:
            devices = {share.device for share in pod.placement.shares}
            held[pod.submitted.namespace] += len(devices)
    ordered = sorted(counts.items(), key=lambda item: (-held[item[0]], -item[1], item[0]))
    return reads.NamespacesAnswer(
        revision=state.revision,
        items=tuple(
            reads.NamespaceRow(namespace=name, pods=pods, devices=held[name])
            for name, pods in ordered
        ),
    )


def lines_answer(
    state: State, pods_shown: int = PODS_SHOWN, forecast: Forecast = lambda _: None
) -> reads.LinesAnswer:
    """Return all pending pods in groups; of each group, list only the first `pods_shown`.

    `forecast` is called once for each group in the answer, so at most `LINES_SHOWN` times."""
    pending = [pod for pod in state.pods.values() if pod.phase is Phase.PENDING]
    waiting = [pod for pod in pending if not pod.submitted.gates]
    waiting.sort(key=lambda pod: (-pod.submitted.priority, pod.submitted_revision))
    by_wants: dict[tuple[Hashable, ...], list[tuple[int, PodState]]] = {}
    numbers: dict[Hashable, int] = {}  # of requests, and of shapes
    explainer = Explainer(state)
    for position, pod in enumerate(waiting, 1):
        key = numbers.get(pod.shape_key)
        if key is None:
            asks = tuple(
                (ask.count, ask.family) if ask.whole else
                (ask.count, ask.family, ask.profile, ask.memory_mib, ask.memory_percent, ask.cores)
                for ask in pod.submitted.shape.asks
            )  # fmt: skip
            devices = structs.replace(pod.submitted.shape.devices, numa_bind=False)
            key = numbers.setdefault((asks, devices), len(numbers))
            numbers[pod.shape_key] = key
        by_wants.setdefault((key, *_kept_out(explainer, pod)), []).append((position, pod))
    ordered = list(by_wants.items())  # in the order of their first pods
    lines = [
        _line(state, explainer, pods, pods_shown, forecast) for _, pods in ordered[:LINES_SHOWN]
    ]
    first = min(waiting, key=lambda pod: pod.submitted_revision, default=None)
    return reads.LinesAnswer(
        revision=state.revision,
        pods=len(waiting),
        devices=sum(devices_wanted(pods[0][1]) * len(pods) for _, pods in ordered),
        gated=len(pending) - len(waiting),
        rejected=len(state.rejected),
        oldest_time=first.submitted_time if first else "",
        lasting=sum(
            len(pods) for _, pods in ordered if _lasts(_explained(explainer, _about(pods)))
        ),
        making_room=sum(pod.uid in state.nominated for pod in waiting),
        lines_count=len(ordered),
        lines=tuple(lines),
    )


def devices_wanted(pod: PodState) -> int:
    """Return how many devices the pod needs at once; init containers run before the others."""
    asks = pod.submitted.shape.asks
    return max(
        sum(ask.count for ask in asks if not ask.init),
        max((ask.count for ask in asks if ask.init), default=0),
    )


def _kept_out(explainer: Explainer, pod: PodState) -> tuple[Hashable, ...]:
    """Return a key for why the pod is pending, apart from devices.

    Pending pods that request the same devices and have equal keys share a group."""
    refused = pod.refusal
    if refused is None:
        return ()
    if refused.gang or explainer.wishes(pod) is None:
        return (pod.submitted.group,)
    if Explained(refused, never=False).of_limits:
        of = (refused.volume and refused.volume.claim, refused.queue and refused.queue.queue)
        return (pod.submitted.namespace, *of, refused.quota and refused.quota.quota)
    reasons = without_gone(refused).reasons
    most = max(reasons, key=reasons.__getitem__, default=None)
    return (most.value,) if most in OF_NODES else ()


def _line(
    state: State,
    explainer: Explainer,
    pods: list[tuple[int, PodState]],
    shown: int,
    forecast: Forecast,
) -> reads.Line:
    oldest = min((pod for _, pod in pods), key=lambda pod: pod.submitted_revision)
    about, shape = _about(pods), pods[0][1].submitted.shape
    # As in `8 x nvidia whole, of H100` or `1 x nvidia 3,000 MiB`.
    asks, wishes = " + ".join(map(ask_words, added_up(shape.asks))), tuple(words.devices(shape))
    explained = _explained(explainer, about)
    said = words.refusal_words(explained) if explained else ""
    causes, nearest = refused_rows(explainer, about, explained) if explained else ((), ())
    group = about.submitted.group
    waits = explained is not None and explained.refused.gang and group in state.groups
    return reads.Line(
        wants=", ".join((asks or "no device", *wishes)),
        asks=shape.asks,
        wishes=wishes,
        devices=devices_wanted(pods[0][1]),
        pods=len(pods),
        oldest_revision=oldest.submitted_revision,
        oldest_time=oldest.submitted_time,
        lasting=_lasts(explained),
        whose=about.submitted.namespace,
        queue=queue_of(state, about),
        # Only if the pod waits for the rest of its gang.
        gang=gang_answer(state, group, state.groups[group]) if waits else None,
        sentence=said,
        apart=said if explained and not causes_say_all(explained) else "",
        nodes=explained.refused.nodes if explained else 0,
        causes=causes,
        nearest=nearest,
        start=with_never(forecast(about), explained is not None and explained.never),
        first=tuple(_queued(state, explainer, position, pod) for position, pod in pods[:shown]),
    )


def _about(pods: list[tuple[int, PodState]]) -> PodState:
    return next((pod for _, pod in pods if pod.refusal), pods[0][1])


def _explained(explainer: Explainer, pod: PodState) -> Explained | None:
    return explainer.explained(pod, pod.refusal) if pod.refusal else None


def _lasts(explained: Explained | None) -> bool:
    if explained is None:
        return False
    return explained.never or bool(explained.limit) or is_unsuitable(explained.refused)


def _queued(state: State, explainer: Explainer, position: int, pod: PodState) -> reads.QueuedPod:
    explained = _explained(explainer, pod)
    near = next(iter(explained.refused.nearest), None) if explained else None
    nominated = state.nominated.get(pod.uid, "")
    leaving = awaited(state, pod.uid) if nominated else []
    made = reads.QueuedPod(
        position=position,
        **fields_of(pod.submitted, "namespace name uid priority"),
        since_revision=pod.submitted_revision,
        since_time=pod.submitted_time,
        refused_revision=pod.refused_revision,
        nearest=near.node if near else "",
        missing=words.missing(near) if near else "",
        nominated=nominated,
        leaving=len(leaving),
        leaving_names=tuple(f"{each.namespace}/{each.name}" for each in leaving),
        last_failure=pod.last_failure,
        sentence=words.refusal_words(explained, short=True) if explained else "",
    )
    return queued_with_text(made)
