"""Simulations of the whole system under faults: a hundred seeds must pass, and be repeatable.

The nightly build runs another hundred seeds, and `make sim` runs any number."""

import os
import subprocess
import sys

import pytest

from apportion_schemas import PodPlaced
from tests.simulation.played import played
from tests.simulation.regressions import REGRESSIONS, Regression
from tests.simulation.weather import KINDS
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod

SEEDS = 200
OFTEN = 100
"""Seeds that run with every change."""
PER_TEST = 20


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.nightly] if first >= OFTEN else [])
        for first in range(0, SEEDS, PER_TEST)
    ],
)
def test_nothing_is_ever_wrong(first: int) -> None:
    """No event breaks an invariant, and after the faults every pod that fits is placed."""
    for seed in range(first, first + PER_TEST):
        outcome = played(seed)
        assert not outcome.trouble, outcome.told()


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
def test_every_fault_strikes() -> None:
    """Every kind of fault occurs in at least one of the first forty seeds."""
    missing = set(KINDS)
    for seed in range(40):
        missing -= played(seed).struck.keys()
        if not missing:
            return
    raise AssertionError(f"never struck: {sorted(missing)}")


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_is_one_run_in_every_process(hash_seed: str) -> None:
    """A seed gives the same log, byte for byte, in another process with another hash seed."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "7"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    here = played(7)
    assert f"seed 7: {here.events} events, right" in found.stdout, found.stdout + found.stderr
    assert f"log {here.log_digest}" in found.stdout


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda each: f"seed-{each.seed}")
def test_fixed_bugs_stay_fixed(regression: Regression) -> None:
    """Every seed that once found a bug passes."""
    outcome = played(regression.seed, cluster=regression.cluster)
    assert not outcome.trouble, f"{regression.found} ({regression.held_by}): {outcome.told()}"


def test_a_gang_that_one_more_member_completes_keeps_its_turn() -> None:
    """A gang keeps its place in the queue from its first pod on.

    A pod that was submitted before the gang's last pod is placed after the gang."""
    ledger = Ledger(rack("n1", 2), gang("team/job", 2), member("g1", cards()))
    assert not any(isinstance(event, PodPlaced) for event in ledger.decide())
    ledger.play(pod("between", cards()), member("g2", cards()))
    first = [event.pod for event in ledger.decide() if isinstance(event, PodPlaced)]
    assert sorted(first) == ["g1", "g2"]
