"""Property: every payload of an older version can be read as an event of the newest version."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from apportion_schemas import CATALOGUE, EventType
from apportion_schemas.envelope import lifted
from tests.properties.event_strategies import values
from tests.support.evolved import ROW

RAISED = [(row, n) for row in (ROW, *CATALOGUE) for n in range(row.first, row.version)]
"""Every older version of an event, also those of a test event with three versions."""


@pytest.mark.parametrize(
    ("row", "version"), RAISED, ids=[f"{row.name}-{version}" for row, version in RAISED]
)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_older_payload_is_lifted(row: EventType, version: int, data: st.DataObject) -> None:
    """Any payload of an older event version converts to a valid payload of the newest version.

    The subject of the event stays the same."""
    older = data.draw(values(inspect.type_info(row.payload_of(version))))
    told = lifted(row, version, msgspec.json.encode(older))
    assert type(told) is row.payload
    assert msgspec.json.decode(msgspec.json.encode(told), type=row.payload) == told
    assert row.subject_of(told) == row.subject_of(older)
