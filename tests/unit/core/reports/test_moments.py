"""Tests of converting event times from text to microseconds and back."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.core.ledger.moments import micros_of, text_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime(1, 1, 3), datetime(9999, 12, 28)  # noqa: DTZ001 - bounds have no zone
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(FIRST, LAST, timezones=zones))
def test_a_moment_is_that_of_the_calendar(moment: datetime) -> None:
    """Times are parsed and formatted as the standard library does, in every time zone and leap
    year."""
    found = micros_of(moment.isoformat())
    assert found == (moment - EPOCH) // timedelta(microseconds=1)
    assert datetime.fromisoformat(text_of(found)) == moment


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01 00:00"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    """Text that is not a valid time is parsed as None, because an event may contain any text."""
    assert micros_of(text) is None
