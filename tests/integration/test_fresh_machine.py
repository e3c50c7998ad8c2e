"""The README's two commands work on a fresh machine, with and without caches."""

from pathlib import Path

import pytest

from tests.support.containers import skip_unless_here
from tests.support.newcomer import placements

skip_unless_here()
pytestmark = [
    pytest.mark.containers,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def test_make_up_reaches_its_first_placement_and_ends_cleanly(tmp_path: Path) -> None:
    """`make up` reaches its first placement with and without caches, and Ctrl-C leaves no process.

    tests.benchmarks.newcomer measures how long it takes.
    """
    found = placements(tmp_path)
    assert found.keys() == {"cold", "warm", "cold-left", "warm-left"}
    assert found["cold-left"] == found["warm-left"] == "0", found
