"""Tests of how the gateway reads the times of events, including malformed ones."""

import json

import pytest

from apportion.gateway.past.chronicle import time_of
from apportion.runtime.ledger.port import Record


@pytest.mark.parametrize(
    ("said", "time"),
    [
        ("2026-05-01T00:00:00Z", "2026-05-01T00:00:00Z"),
        ("2026-05-01T00:00:00.123456+02:00", "2026-05-01T00:00:00.123456+02:00"),
        ("2026-05-01T00:00:00", ""),
        ("yesterday", ""),
        ("2026-13-41T00:00:00Z", ""),
        (7, ""),
        ("", ""),
    ],
)
def test_what_is_no_moment_is_no_time(said: object, time: str) -> None:
    """If an event's time is invalid or has no time zone, the event has no time."""
    payload = json.dumps({"time": said}).encode()
    assert time_of(Record(1, "apportion.v1.workload.x", payload)) == time


def test_bytes_that_are_no_event_have_none() -> None:
    """A record that is not an event has no time."""
    assert time_of(Record(1, "s", b"\xff?")) == ""
