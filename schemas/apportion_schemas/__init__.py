"""The events of the ledger: what anyone who audits Apportion imports.

Every fact about devices, pods and placements is one of these events, a CloudEvents 1.0 JSON
document on a NATS subject. This package needs msgspec and the standard library only, so that an
auditor, a billing job or a dashboard can read the ledger without installing a scheduler.

Invariant: what `decode` accepts, `encode` writes back unchanged, and what it does not accept it
names: an event is never skipped in silence.
"""

from apportion_schemas.agreement import DifferenceFound, LedgerRebuilt, PodAdopted
from apportion_schemas.allocation import AllocationFailed, SharesAllocated
from apportion_schemas.binding import BindFailed, PodBound
from apportion_schemas.catalogue import CATALOGUE, EventType, subject_of
from apportion_schemas.cluster import (
    NodeGone,
    NodeObserved,
    PodGroupGone,
    PodGroupObserved,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    Taint,
)
from apportion_schemas.configuration import Configuration, ConfigurationChanged
from apportion_schemas.envelope import (
    Event,
    EventError,
    InvalidEvent,
    UnknownEvent,
    UnreadableEvent,
    decode,
    encode,
)
from apportion_schemas.inventory import Device, DeviceHealthChanged, Host, Mode, NodeReported
from apportion_schemas.operations import (
    DeviceCordoned,
    DeviceUncordoned,
    NodeCordoned,
    NodeUncordoned,
    NodeWeights,
    Policy,
    PolicyChanged,
)
from apportion_schemas.placement import (
    GangShortage,
    MigInstance,
    NearMiss,
    PlacementVoided,
    PodPlaced,
    PodRefused,
    QueueShortage,
    QuotaShortage,
    RefusalCode,
    Score,
    Share,
)
from apportion_schemas.pricing import PricedShape, PricesLearnt
from apportion_schemas.workload import (
    Ask,
    DeviceConstraints,
    DeviceWeights,
    HostPort,
    LabelExpression,
    NodeConstraints,
    NodeExpression,
    PodChanged,
    PodConstraints,
    PodGone,
    PodRejected,
    PodSelector,
    PodSubmitted,
    PodTerm,
    PreferredPodTerm,
    PreferredTerm,
    Shape,
    SpreadConstraint,
    Toleration,
)

__all__ = [
    "CATALOGUE",
    "AllocationFailed",
    "Ask",
    "BindFailed",
    "Configuration",
    "ConfigurationChanged",
    "Device",
    "DeviceConstraints",
    "DeviceCordoned",
    "DeviceHealthChanged",
    "DeviceUncordoned",
    "DeviceWeights",
    "DifferenceFound",
    "Event",
    "EventError",
    "EventType",
    "GangShortage",
    "Host",
    "HostPort",
    "InvalidEvent",
    "LabelExpression",
    "LedgerRebuilt",
    "MigInstance",
    "Mode",
    "NearMiss",
    "NodeConstraints",
    "NodeCordoned",
    "NodeExpression",
    "NodeGone",
    "NodeObserved",
    "NodeReported",
    "NodeUncordoned",
    "NodeWeights",
    "PlacementVoided",
    "PodAdopted",
    "PodBound",
    "PodChanged",
    "PodConstraints",
    "PodGone",
    "PodGroupGone",
    "PodGroupObserved",
    "PodPlaced",
    "PodRefused",
    "PodRejected",
    "PodSelector",
    "PodSubmitted",
    "PodTerm",
    "Policy",
    "PolicyChanged",
    "PreferredPodTerm",
    "PreferredTerm",
    "PricedShape",
    "PricesLearnt",
    "QueueObserved",
    "QueueShortage",
    "QuotaGone",
    "QuotaObserved",
    "QuotaShortage",
    "RefusalCode",
    "Score",
    "Shape",
    "Share",
    "SharesAllocated",
    "SpreadConstraint",
    "Taint",
    "Toleration",
    "UnknownEvent",
    "UnreadableEvent",
    "decode",
    "encode",
    "subject_of",
]
