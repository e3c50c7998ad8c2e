"""For what a pod waits at which no scheduler looks: a gate, another scheduler's choice, its gang.

No node is at fault, and nothing was refused, so no event says it. Invariant: it is said of pods
without a refusal alone, and empty where a decision is all that is lacking."""

from collections.abc import Sequence

from apportion.core.explain.text import words
from apportion.core.ledger.state import Phase, PodState, State


def unlooked(state: State, pod: PodState) -> str:
    """As in `until its gates are taken away: example.com/hold`, to stand behind that it waits."""
    if pod.phase is not Phase.PENDING or pod.refusal is not None:
        return ""
    if pod.submitted.gates:
        return gates_words(pod.submitted.gates)
    if pod.submitted.chooser:
        return chooser_words(pod.submitted.chooser)
    return gang_words(state, pod)


def gates_words(gates: Sequence[str]) -> str:
    """For what a pod with gates waits."""
    return f"until its gates are taken away: {', '.join(gates)}"


def chooser_words(chooser: str) -> str:
    """For what a pod waits whose node is chosen elsewhere."""
    return f"until {chooser} has chosen its node"


def gang_words(state: State, pod: PodState) -> str:
    """What a pod's gang still waits for; empty where it has none or is complete."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is None:
        return ""
    if group.observed is None:
        return words.undeclared(pod.submitted.group)
    here = sum(not each.submitted.gates for each in group.pods.values())
    if here >= group.min_available:
        return ""
    return (
        f"its gang {pod.submitted.group} needs {group.min_available} pods together and has {here}"
    )
