"""The names that users see for codes of the API; a code that is not listed is shown unchanged."""

from typing import Final

from apportion.core.answers.plans import Outcome
from apportion.core.answers.reads import StartUnknown

PENDING: Final = "pending"  # displayed for both phases of a pod without a placement
PHASES: Final = {"pending": PENDING, "refused": PENDING}
OUTCOMES: Final[dict[Outcome, str]] = {
    "fits": "fits", "not-now": PENDING, "never": "never fits", "unchanged": "unchanged",
}  # fmt: skip
# Why the start of a pending pod is unknown; not those for which the explanation says enough
START_UNKNOWN: Final[dict[StartUnknown, str]] = {
    "little-history": "too few similar pods have had to wait yet",
    "few-started": "too few similar pods that waited as long have started",
    "limit": "a limit of its queue or namespace keeps it back",
    "not-ready": "it waits for a volume or for the rest of its gang",
    "nodes-closed": "each node is cordoned, tainted, not ready, or has other labels",
    "other-scheduler": "another scheduler chooses its node",
}
START_JUDGED_LEAST: Final = 50  # fewer judged forecasts: their percentage is not shown
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
