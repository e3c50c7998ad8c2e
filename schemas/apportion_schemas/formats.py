"""By which rules the ledger is read: which formats are legal on it, what is set aside.

A format is a type of event in one version. Those in `BORN` are legal on every ledger. Whatever came
later is legal behind an operator's `FormatEnabled` alone: before that it changes nothing, for every
reader alike, so nobody halts a reader by inventing a type. What halts readers nevertheless is taken
out of the fold by `RevisionSetAside`, and stays in the ledger.

Invariant: these two are read by every build in version 1, for ever; what they say is known before
anything else is folded.
"""

from typing import Annotated, Final

from msgspec import Meta

from apportion_schemas.operations import Reason
from apportion_schemas.quantities import Name, Payload, Text

VERSION_MAX: Final = 65_535
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]


class FormatEnabled(Payload, frozen=True):
    """Behind this revision events of the type `format` are legal up to this version.

    `format` is the bare name, as in `PodPlaced`. A reader that does not know it halts before the
    first one of it.
    """

    format: Name
    version: Version
    by: Name
    reason: Text = ""


class RevisionSetAside(Payload, frozen=True):
    """No reader applies the event at `revision`, which stands before this one.

    Whoever has applied it already begins anew without it, and so does who has halted before it. It
    stays where it is, as evidence. An event of this type cannot be set aside.
    """

    revision: Annotated[int, Meta(ge=1, le=1 << 53)]
    by: Name
    reason: Reason


BORN: Final[dict[str, int]] = {
    "AllocationFailed": 1,
    "BindFailed": 1,
    "BudgetGone": 1,
    "BudgetObserved": 1,
    "ConfigurationChanged": 1,
    "DeviceCordonLifted": 1,
    "DeviceCordoned": 1,
    "DeviceHealthChanged": 1,
    "DeviceUncordoned": 1,
    "DifferenceFound": 1,
    "FormatEnabled": 1,
    "LedgerRebuilt": 1,
    "NamespaceGone": 1,
    "NamespaceObserved": 1,
    "NodeCordonLifted": 1,
    "NodeCordoned": 1,
    "NodeGone": 1,
    "NodeHeard": 1,
    "NodeObserved": 4,
    "NodeReported": 2,
    "NodeSilent": 1,
    "NodeUncordoned": 1,
    "PlacementVoided": 1,
    "PodAdopted": 3,
    "PodBound": 1,
    "PodChanged": 2,
    "PodEvicted": 1,
    "PodGone": 1,
    "PodGroupGone": 1,
    "PodGroupObserved": 1,
    "PodPlaced": 2,
    "PodRefused": 2,
    "PodRejected": 1,
    "PodResized": 1,
    "PodSubmitted": 3,
    "PolicyChanged": 1,
    "PricesLearnt": 1,
    "QueueObserved": 1,
    "QuotaGone": 1,
    "QuotaObserved": 1,
    "ReportRefused": 1,
    "ResizeAsked": 1,
    "ResizeRefused": 1,
    "RevisionSetAside": 1,
    "ShareBreached": 1,
    "SharesAllocated": 1,
    "UsageRecorded": 2,
    "VolumeClaimGone": 1,
    "VolumeClaimObserved": 1,
}
"""The newest version of each event that is legal without `FormatEnabled`, of the first release.

It may grow until that is out, and never after: what it names is legal on ledgers that are there.
The numbers above 1 are of builds before that release, whose ledgers (tests/golden/ledgers) must
stay readable, so they are not given out again. No lift is kept for them: what these builds wrote in
an older version is what the newest one allows, with the defaults for what it left out.
"""
