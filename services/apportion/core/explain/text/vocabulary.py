"""Display names for codes of the API; a code without one is displayed as it is."""

from typing import Final

from apportion.core.answers.plans import Outcome

WAITING: Final = "waiting"  # displayed for both phases of a pod without a placement
PHASES: Final = {"pending": WAITING, "refused": WAITING}
OUTCOMES: Final[dict[Outcome, str]] = {
    "fits": "fits", "not-now": WAITING, "never": "never", "unchanged": "has its place",
}  # fmt: skip
# Headings of a pod's history, by type of event
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
