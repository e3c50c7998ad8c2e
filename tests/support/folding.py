"""Fold records one by one, for tests that check each change."""

from apportion.core.ledger.handlers.change import Change
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import EventError


def taken(fold: StateFold, record: Record) -> Change:
    """Fold the next record, and return the resulting change."""
    try:
        event = fold.rules.read(record.revision, record.subject, record.payload)
    except EventError as error:
        return fold.refuse(record, str(error))
    return fold.apply(record, event)
