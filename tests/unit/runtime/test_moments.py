"""Tests of how a time or revision that a user typed is read."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from apportion.runtime.ledger.moments import Moment, MomentError, parse_moment, shown_time

NOW = datetime(2026, 11, 24, 14, 20, 30, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("14:20", datetime(2026, 11, 24, 14, 20, tzinfo=UTC)),
        ("14:20:07", datetime(2026, 11, 24, 14, 20, 7, tzinfo=UTC)),
        ("9:05", datetime(2026, 11, 24, 9, 5, tzinfo=UTC)),
        ("14:21", datetime(2026, 11, 23, 14, 21, tzinfo=UTC)),
        ("-10m", NOW - timedelta(minutes=10)),
        ("-90s", NOW - timedelta(seconds=90)),
        ("-2h", NOW - timedelta(hours=2)),
        ("-3d", NOW - timedelta(days=3)),
        ("-0s", NOW),
        ("now", NOW),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T03:00", datetime(2026, 11, 20, 3, tzinfo=UTC)),
        ("2026-11-20 03:00:05", datetime(2026, 11, 20, 3, 0, 5, tzinfo=UTC)),
        ("2026-11-20T03:00:00.250000Z", datetime(2026, 11, 20, 3, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-20T03:00+02:00", datetime(2026, 11, 20, 1, tzinfo=UTC)),
        ("2026-11-20T03:00:00 02:00", datetime(2026, 11, 20, 1, tzinfo=UTC)),
        ("2026-11-20 03:00 0200", datetime(2026, 11, 20, 1, tzinfo=UTC)),
    ],
)
def test_times(text: str, time: datetime) -> None:
    """Each form of a time is read correctly. It is in UTC unless it names a time zone."""
    assert parse_moment(text, NOW) == Moment(time=time)


def test_a_time_of_day_is_of_the_day_in_utc() -> None:
    """A time without a date is on the current day in UTC."""
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    assert parse_moment("14:20", elsewhere).time == datetime(2026, 11, 24, 14, 20, tzinfo=UTC)


def test_revision() -> None:
    """A text of digits only is a revision."""
    assert parse_moment("1200", NOW) == Moment(revision=1200)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "25:00", "14:60", "-10", "-10w", "10m", "2026-13-01", "2026-11-20T99:00",
     "2026-11-20 02:00 99:99", "2026-11-20T03:00-01:00 02:00", "١٢", "-999999999d", "1.5", "+5",
     "20261120T0300"],
)  # fmt: skip
def test_what_is_no_moment(text: str) -> None:
    """If a text is not a valid time, the error lists the valid forms."""
    with pytest.raises(MomentError) as refused:
        parse_moment(text, NOW)
    assert repr(text) in str(refused.value)
    assert "14:20" in refused.value.fix
    assert "-10m" in refused.value.fix


def test_bounds() -> None:
    """If a time is too long, out of range or in the future, the error has a fix."""
    for text in ("1" * 41, "9" * 17, "0", "2026-11-24T14:20:31", "2026-11-25"):
        with pytest.raises(MomentError) as refused:
            parse_moment(text, NOW)
        assert refused.value.fix


def test_shown() -> None:
    """Messages show a time in UTC, to the second."""
    assert shown_time(NOW) == "2026-11-24T14:20:30Z"
