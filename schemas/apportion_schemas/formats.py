"""Events that set how the ledger is read: legal formats and skipped revisions.

A format is a type of event in one version. Those in `BORN` are legal on every ledger; a later one
only after an operator's `FormatEnabled`. Before that it changes nothing for any reader, so that
no writer can halt readers by inventing a type. Events that halt readers nevertheless can be skipped
with `RevisionSetAside`; they stay in the ledger.

Invariant: every build reads version 1 of these two, and looks them up before it folds."""

from typing import Annotated, Final

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.operations import Reason
from apportion_schemas.quantities import Name, Payload, Text

VERSION_MAX: Final = 65_535
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]


@event("operator.reading.format.{format}", "operator")
class FormatEnabled(Payload, frozen=True):
    """After this revision, events of the type `format` are legal up to this version.

    `format` is the bare name, as in `PodPlaced`. A reader that does not know the version halts
    before its first event."""

    format: Name
    version: Version
    by: Name
    reason: Text = ""


@event("operator.reading.aside.{revision}", "operator")
class RevisionSetAside(Payload, frozen=True):
    """All readers skip the event at `revision`, which is before this one.

    Readers that have applied it, or have halted before it, restart without it. It stays in the
    ledger as evidence. An event of this type cannot be set aside."""

    revision: Annotated[int, Meta(ge=1, le=1 << 53)]
    by: Name
    reason: Reason
