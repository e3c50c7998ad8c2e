"""By which rules the ledger is read: which formats are legal on it, what is set aside.

A format is a type of event in one version. Those in `BORN` are legal on every ledger. Whatever came
later is legal behind an operator's `FormatEnabled` alone: before that it changes nothing, for every
reader alike, so nobody halts a reader by inventing a type. What halts readers nevertheless is taken
out of the fold by `RevisionSetAside`, and stays in the ledger.

Invariant: these two are read by every build in version 1, for ever; what they say is known before
anything else is folded."""

from typing import Annotated, Final

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.operations import Reason
from apportion_schemas.quantities import Name, Payload, Text

VERSION_MAX: Final = 65_535
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]


@event("operator.reading.format.{format}", "operator")
class FormatEnabled(Payload, frozen=True):
    """Behind this revision events of the type `format` are legal up to this version.

    `format` is the bare name, as in `PodPlaced`. A reader that does not know it halts before the
    first one of it."""

    format: Name
    version: Version
    by: Name
    reason: Text = ""


@event("operator.reading.aside.{revision}", "operator")
class RevisionSetAside(Payload, frozen=True):
    """No reader applies the event at `revision`, which stands before this one.

    Whoever has applied it already begins anew without it, and so does who has halted before it. It
    stays where it is, as evidence. An event of this type cannot be set aside."""

    revision: Annotated[int, Meta(ge=1, le=1 << 53)]
    by: Name
    reason: Reason
