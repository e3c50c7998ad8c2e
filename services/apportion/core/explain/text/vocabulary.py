"""Words of verbs and of the console for what the API answers by a name, in one place for both.

Invariant: what has no word here is its own word."""

from typing import Final

from apportion.core.answers.plans import Outcome

WAITING: Final = "waiting"
"""What people are told of both phases of a pod without a place that the read API knows."""
PHASES: Final = {"pending": WAITING, "refused": WAITING}
OUTCOMES: Final[dict[Outcome, str]] = {
    "fits": "fits", "not-now": WAITING, "never": "never", "unchanged": "has its place",
}  # fmt: skip
"""What becomes of a pod of a plan."""
STORY: Final = {
    "PodSubmitted": "Submitted",
    "PodAdopted": "Adopted",
    "PodRefused": "Waiting",
    "PodRejected": "Rejected",
    "PodPlaced": "Placed",
    "PodBound": "Bound",
    "SharesAllocated": "Allocated",
    "PodGone": "Ended",
    "PlacementVoided": "Placement voided",
    "AllocationFailed": "Allocation failed",
    "ShareBreached": "Share breached",
    "BindFailed": "Binding failed",
    "PodEvicted": "Evicted",
    "PodResized": "Resized",
    "PodChanged": "Changed",
    "ResizeAsked": "Resize asked",
    "ResizeRefused": "Resize refused",
    "DifferenceFound": "Difference found",
    "DeviceHealthChanged": "Health of its card",
    "NodeGone": "Node gone",
    "NodeSilent": "Node silent",
    "NodeHeard": "Node heard again",
    "NodeObserved": "Its node",
}
"""What the facts of a pod's story are headed with, by the types of their events."""
