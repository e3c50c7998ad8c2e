"""Tests of the system clock and of how times are written."""

from datetime import UTC, datetime, timedelta, timezone

from apportion.runtime.process.clock import SystemClock, rfc3339


def test_a_moment_of_any_zone_is_written_in_utc_with_microseconds() -> None:
    """A time in any time zone is written in UTC with microseconds."""
    zone = timezone(timedelta(hours=2))
    assert rfc3339(datetime(2026, 5, 1, 14, 0, 0, 7, tzinfo=zone)) == "2026-05-01T12:00:00.000007Z"
    assert rfc3339(datetime(2026, 5, 1, tzinfo=UTC)) == "2026-05-01T00:00:00.000000Z"


def test_the_systems_clock_is_aware_and_its_monotonic_never_goes_back() -> None:
    """The system clock's times have the time zone UTC. Its monotonic time never goes back."""
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
