"""What pods that fit nowhere are told: the reasons of their line, and again when those change.

Invariant: a pod that has heard the same codes, of the same limit, hears nothing.
"""

from collections.abc import Container, Iterator

from apportion.core.ledger.state import PodState
from apportion.core.placement.queueing.queue import PendingQueue, Reasons, gist_of
from apportion_schemas import PodRefused


def unreported(
    queue: PendingQueue, placed: Container[str]
) -> Iterator[tuple[PodState, PodRefused]]:
    """Pods that have not heard why they wait, with what is to be said; `placed` hear nothing.

    A pod that is yielded counts as told.
    """
    for pod, reasons in queue.untold():
        if pod.uid in placed:
            continue
        told = pod.refusal
        if told is None or gist_of(told.reasons, told.quota) != reasons.gist:
            yield pod, refusal_of(pod, reasons)


def refusal_of(pod: PodState, reasons: Reasons) -> PodRefused:
    """The reasons of a line as the event that tells one of its pods."""
    lack = reasons.limit.lack if reasons.limit is not None else None
    return PodRefused(
        pod=pod.uid,
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        reasons=reasons.counts,
        nodes=reasons.nodes,
        nearest=reasons.nearest,
        gang=reasons.gang,
        queue=lack.queue if lack is not None else None,
        quota=lack.quota if lack is not None else None,
    )
