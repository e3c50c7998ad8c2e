"""Tests of how the time between two events is printed."""

import pytest

from apportion.cli.render.output import between


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "+0.0s"), (0.21, "+0.2s"), (9.99, "+10.0s"), (13.7, "+13s"), (60.0, "+1m00s"),
        (125.0, "+2m05s"), (3_600.0, "+1h00m"), (7_530.0, "+2h05m"), (90_000.0, "+1d01h"),
        (-1.5, "-1.5s"), (-0.04, "+0.0s"), (-0.06, "-0.1s"),
    ],
)  # fmt: skip
def test_between(seconds: float, words: str) -> None:
    """A time difference is printed in its two largest units. It can be negative, since clocks may
    differ."""
    assert between(seconds) == words
