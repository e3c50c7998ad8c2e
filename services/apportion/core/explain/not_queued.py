"""Explain why a pending pod is not in the queue: a gate, another scheduler, or its gang."""

from collections.abc import Sequence

from apportion.core.explain.text import words
from apportion.core.ledger.state import Phase, PodState, State


def unlooked(state: State, pod: PodState) -> str:
    """Return what a pod waits for before a decision, as in `until its scheduling gates …`."""
    if pod.phase is not Phase.PENDING or pod.refusal is not None:
        return ""
    if pod.submitted.gates:
        return gates_words(pod.submitted.gates)
    if pod.submitted.chooser:
        return chooser_words(pod.submitted.chooser)
    return gang_words(state, pod)


def gates_words(gates: Sequence[str]) -> str:
    """Return as text which scheduling gates must be removed first."""
    return f"until its scheduling gates are removed: {', '.join(gates)}"


def chooser_words(chooser: str) -> str:
    """Return the text for a pod that waits until another scheduler has chosen its node."""
    return f"until {chooser} chooses its node"


def gang_words(state: State, pod: PodState) -> str:
    """Return what the pod's gang still waits for; empty if the gang is complete."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is None:
        return ""
    if group.observed is None:
        return words.undeclared(pod.submitted.group)
    here = sum(not each.submitted.gates for each in group.pods.values())
    if here >= group.min_available:
        return ""
    return (
        f"its gang {pod.submitted.group} needs {group.min_available} pods to start, but has {here}"
    )
