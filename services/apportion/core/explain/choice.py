"""How the devices of a pod were chosen among those of its node, in a sentence.

Invariant: it is said by the policy under which the pod was placed, and by nothing where that has
changed since, another scheduler chose, or the pod has an order of its own that no word here is for.
"""

from typing import Final

from apportion.core.ledger.state import Placement, PodState, State
from apportion_schemas import Score

_WEIGHED: Final = {
    "price": "to where most is left to the pods that usually come, of equals to the fullest; what "
    "is left to them is the price, which is no money",
    "fgd": "to where the least fragmentation is left",
    "bestfit": "to where the least is left over",
}
"""Policies whose score of the node is that of a device on it."""
_ORDERED: Final = {
    "binpack": "to the fullest that has room",
    "spread": "to where the fewest are, of equals to the emptiest",
}


def choice_words(state: State, pod: PodState, placement: Placement, score: Score) -> str:
    """As in `among the devices of n1 it went by bestfit: to where the least is left over`."""
    submitted = pod.submitted
    elsewhere = submitted.chooser or not placement.rationale or not placement.shares
    if elsewhere or submitted.shape.device_weights is not None:
        return ""
    if state.policy_revision > pod.placed_revision:
        return ""
    policy = submitted.shape.device_policy or state.policy.device_policy
    if policy in _WEIGHED:
        policy = next((each for each in _WEIGHED if each in score.parts), "")
    which = _WEIGHED.get(policy) or _ORDERED.get(policy)
    return f"among the devices of {placement.node} it went by {policy}: {which}" if which else ""
