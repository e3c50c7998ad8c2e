"""The record of the configuration in force, kept where a trimmed ledger no longer has it.

Whoever folds everything begins beyond the dropped beginning with a snapshot. The webhook folds the
configuration alone, and its user may not read a snapshot, which holds every pod: for it the record
lies beside the snapshots as one message, which one permission names. Invariant: what is kept is a
record of this ledger, word for word, that the fold has taken.
"""

from __future__ import annotations

from typing import Final

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.object_store import BadObject, Bucket
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.port import Record
from apportion_schemas.catalogue import SUBJECTS

CONFIGURATION: Final = f"{SUBJECTS}.operator.configuration"
NAME: Final = "configuration"
_REVISION: Final = "Apportion-Revision"


class KeptConfiguration:
    """What one bucket keeps; see the module."""

    def __init__(self, wire: Wire, bucket: Bucket) -> None:
        self._wire = wire
        self._bucket = bucket

    async def keep(self, revision: int) -> None:
        """Keep the record at this revision, unless it is 0 or was dropped before.

        Raises:
            LedgerFull, LedgerUnavailable, NotPermitted: what was kept before is still there.
        """
        record = await stream.read_record(self._wire, revision) if revision else None
        if record is not None:
            await self._bucket.put_alone(NAME, record.payload, {_REVISION: str(revision)})

    async def read(self) -> Record | None:
        """What is kept; None where nothing is.

        Raises:
            BadObject: it has no revision, so that we did not write it.
            LedgerUnavailable, NotPermitted.
        """
        found = await self._bucket.get_alone(NAME)
        if found is None:
            return None
        payload, headers = found
        revision = headers.get(_REVISION, "")
        if not (revision.isascii() and revision.isdecimal()):
            raise BadObject(f"the configuration that is kept is of revision {revision!r}")
        return Record(int(revision), CONFIGURATION, payload)

    async def revision(self) -> int:
        """The revision of what is kept, 0 where nothing is. Raises what `read` raises."""
        record = await self.read()
        return 0 if record is None else record.revision
