"""Events that decide how the ledger is read: which formats are legal, which revisions to skip.

A format is an event type in one version. Formats in `BORN` are legal on every ledger; a later
format only after an operator's `FormatEnabled`. Readers skip a format that is not enabled, so a
writer cannot halt them by inventing a type. If an event halts readers nevertheless, an operator can
set it aside with `RevisionSetAside`; the event stays in the ledger.

Invariant: every build reads version 1 of both types, and finds these events before it folds."""

from typing import Annotated, Final

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.operations import Reason
from apportion_schemas.quantities import Name, Payload, Text

VERSION_MAX: Final = 65_535
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]


@event("operator.reading.format.{format}", "operator")
class FormatEnabled(Payload, frozen=True):
    """An operator allows events of the type `format`, up to `version`, after this event.

    `format` is the bare name, as in `PodPlaced`. A reader that does not know this version halts at
    the first event that uses it."""

    format: Name
    version: Version
    by: Name
    reason: Text = ""


@event("operator.reading.aside.{revision}", "operator")
class RevisionSetAside(Payload, frozen=True):
    """An operator makes all readers skip the event at `revision`, which precedes this event.

    Readers that have applied the skipped event, or have halted before it, restart without it. The
    event stays in the ledger as evidence. A RevisionSetAside itself cannot be skipped."""

    revision: Annotated[int, Meta(ge=1, le=1 << 53)]
    by: Name
    reason: Reason
