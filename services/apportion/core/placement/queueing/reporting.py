"""What is reported to pods that fit nowhere: why, and again when that changes.

Invariant: a pod that has heard the same codes, of the same limit, hears nothing.
"""

from collections.abc import Container, Iterator

from apportion.core.ledger.state import PodState
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import ReasonKey, Reasons, reason_key_of
from apportion_schemas import PodRefused


def unreported(
    queue: PendingQueue, placed: Container[str]
) -> Iterator[tuple[PodState, PodRefused]]:
    """Pods that have not heard why they wait, with what is to be said; `placed` hear nothing.

    A pod that is yielded counts as one that knows.
    """
    for pod, reasons in queue.unreported():
        if pod.uid in placed:
            continue
        reported = pod.refusal
        if reported is None or _reason_key(reported) != reasons.reason_key:
            yield pod, refusal_of(pod, reasons)


def refusal_of(pod: PodState, reasons: Reasons) -> PodRefused:
    """The reasons of a shape queue as the event that tells one of its pods."""
    exceeded = reasons.limit.exceeded if reasons.limit is not None else None
    return PodRefused(
        pod=pod.uid,
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        reasons=reasons.counts,
        nodes=reasons.nodes,
        nearest=reasons.nearest,
        gang=reasons.gang,
        queue=exceeded.queue if exceeded is not None else None,
        quota=exceeded.quota if exceeded is not None else None,
        volume=reasons.volume,
    )


def _reason_key(reported: PodRefused) -> ReasonKey:
    return reason_key_of(reported.reasons, reported.quota, reported.volume)
