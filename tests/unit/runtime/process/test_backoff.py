"""Tests of the pause between retries, which grows with the number of failures up to a maximum."""

from itertools import pairwise

import pytest

from apportion.runtime.process.clock import BackOff


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(-1, 0.0), (0, 0.0), (1, 0.5), (2, 1.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)],
)
def test_after(failures: int, pause_s: float) -> None:
    """The pause before a retry doubles with each failure, up to a maximum. It is zero while there
    is no failure."""
    assert BackOff(0.5, 30.0).after(failures) == pause_s


def test_it_never_shrinks() -> None:
    """The pause before a retry never becomes shorter with more failures."""
    pauses = [BackOff(1e-6, 60.0).after(failures) for failures in range(100)]
    assert all(before <= after for before, after in pairwise(pauses))
    assert pauses[-1] == 60.0
