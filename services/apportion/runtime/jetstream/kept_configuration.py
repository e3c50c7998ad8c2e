"""The record of the configuration in force, kept where a trimmed ledger no longer has it.

A reader of everything begins beyond the dropped beginning with a snapshot. The webhook folds the
configuration alone, and its user may not read a snapshot, which holds every pod. So
`apportion ledger trim` puts the record beside the snapshot that bootstrap keeps, as one message,
which one permission names. Invariant: what is kept is a record of this ledger, word for word.
"""

from __future__ import annotations

from typing import Final

from apportion.runtime.jetstream.object_store import BadObject, Bucket
from apportion.runtime.ledger.port import Record
from apportion_schemas.catalogue import SUBJECTS

CONFIGURATION: Final = f"{SUBJECTS}.operator.configuration"
NAME: Final = "configuration"
_REVISION: Final = "Apportion-Revision"


class KeptConfiguration:
    """What one bucket keeps; see the module."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def keep(self, record: Record) -> None:
        """Keep this record in place of the one before; for the bootstrap user.

        Raises:
            LedgerFull, LedgerUnavailable, NotPermitted: what was kept before is still there.
        """
        await self._bucket.put_alone(NAME, record.payload, {_REVISION: str(record.revision)})

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
