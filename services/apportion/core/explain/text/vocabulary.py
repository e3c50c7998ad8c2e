"""Names to show to users for codes of the API; a code without one is shown as it is."""

from typing import Final

from apportion.core.answers.plans import Outcome

PENDING: Final = "pending"  # displayed for both phases of a pod without a placement
PHASES: Final = {"pending": PENDING, "refused": PENDING}
OUTCOMES: Final[dict[Outcome, str]] = {
    "fits": "fits", "not-now": PENDING, "never": "never fits", "unchanged": "unchanged",
}  # fmt: skip
# Headings of a pod's history, by type of event
STORY: Final = {
    "PodSubmitted": "Submitted",
    "PodAdopted": "Adopted",
    "PodRefused": "Pending",
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
    "ResizeAsked": "Resize requested",
    "ResizeRefused": "Resize refused",
    "DifferenceFound": "Difference found",
    "DeviceHealthChanged": "Device health",
    "NodeGone": "Node gone",
    "NodeSilent": "Node silent",
    "NodeHeard": "Node reports again",
    "NodeObserved": "Node change",
    "DevicesRegistered": "Devices registered",
}
