"""How the devices of a pod were chosen among those of its node, in a sentence.

Invariant: it is said by the policy under which the pod was placed, and by nothing where that has
changed since, another scheduler chose, or the pod has an order of its own that no word here is for.
"""

from apportion.core.ledger.state import Placement, PodState, State
from apportion_schemas import Score
from apportion_schemas.operations import POLICIES


def choice_words(state: State, pod: PodState, placement: Placement, score: Score) -> str:
    """As in `among the devices of n1 it went by bestfit: to where the least is left over`."""
    submitted = pod.submitted
    elsewhere = submitted.chooser or not placement.rationale or not placement.shares
    if elsewhere or submitted.shape.device_weights is not None:
        return ""
    if state.policy_revision > pod.placed_revision:
        return ""
    policy = submitted.shape.device_policy or state.policy.device_policy
    names = [each for each in POLICIES if each == policy]
    if names and POLICIES[names[0]].with_node:
        names = [each for each, text in POLICIES.items() if text.with_node and each in score.parts]
    if not names:
        return ""
    which = POLICIES[names[0]].of_devices
    return f"among the devices of {placement.node} it went by {names[0]}: {which}"
