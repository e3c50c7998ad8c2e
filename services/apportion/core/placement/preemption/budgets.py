"""Which evictions exceed a PodDisruptionBudget, as kube-scheduler's DefaultPreemption counts them.

A budget forbids nothing here: pods whose eviction exceeds one are spared where others will do.
"""

from collections.abc import Iterable

from apportion.core.ledger.state import PodState, State
from apportion.core.workloads.pods.labels import meet

Exceeded = dict[str, tuple[str, ...]]
"""By uid of a pod, the budgets that its eviction exceeds."""


def exceeded(state: State, pods: Iterable[PodState]) -> Exceeded:
    """Of these pods, evicted in this order, those that are one too many for a budget."""
    if not state.budgets:
        return {}
    left = {
        (namespace, name): budget.allowed
        for namespace, budgets in state.budgets.items()
        for name, budget in budgets.items()
    }
    found: Exceeded = {}
    for pod in pods:
        about, over = pod.submitted, []
        for name, budget in sorted(state.budgets.get(about.namespace, {}).items()):
            if not budget.selector or not meet(about.labels, budget.selector):
                continue
            left[about.namespace, name] -= 1
            if left[about.namespace, name] < 0:
                over.append(name)
        if over:
            found[pod.uid] = tuple(over)
    return found
