"""To which queue a pod belongs, for those who decide and for those who add up."""

from typing import Final

from apportion.core.ledger.state import PodState, State

DEFAULT: Final = "default"


def queue_of(state: State, pod: PodState) -> str:
    """The queue of a pod: its gang's, else the one that it names, else `default`."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is not None and group.observed is not None:
        return group.observed.queue
    return pod.submitted.queue or DEFAULT
