"""Times in tables: to the second, and with their date only where it is not today's."""

from datetime import UTC, datetime

import pytest

from apportion.cli.moments import clock

NOW = datetime(2026, 11, 25, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("2026-11-25T00:04:59.123Z", "00:04:59Z"),
        ("2026-11-24T23:59:59.123Z", "2026-11-24T23:59:59Z"),
        ("2025-11-25T00:04:59Z", "2025-11-25T00:04:59Z"),
        ("", ""),
    ],
)
def test_a_time_drops_its_date_when_it_is_today(time: str, shown: str) -> None:
    """Today is that of UTC, as the times are."""
    assert clock(time, NOW) == shown
