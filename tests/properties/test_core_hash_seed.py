"""Property: a history leads to the same state and decisions under every hash seed of Python."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from apportion.core.ledger.state import State
from tests.properties.core_histories import Step, histories, trying
from tests.properties.replaying import played, written

ROOT = Path(__file__).parents[2]


@cache
def lines() -> list[str]:
    """Return some histories, one per line. Every run of the tests gets the same histories."""
    found: list[str] = []

    @settings(trying(25), derandomize=True, database=None, phases=[Phase.generate])
    @given(histories())
    def draw(steps: list[Step]) -> None:
        found.append(written(steps, State()))

    draw()
    return found


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_hash_seeds_make_no_difference(seed: str) -> None:
    """State and decisions do not depend on Python's hash seed, nor on the order of any set."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.properties.replaying"],
        input="\n".join(lines()),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        timeout=250,
    )
    assert process.stdout.splitlines() == [played(line) for line in lines()]
