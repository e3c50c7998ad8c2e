"""Tests that every planted fault is caught within its number of seeds, so that the simulation can
fail.

The same run passes without the fault, which proves that the fault was caught."""

import pytest

from tests.simulation.planted import PLANTED, Planted, planted
from tests.simulation.planted_cluster import PLANTED_IN_A_CLUSTER
from tests.simulation.played import played
from tests.simulation.world import run

ALL = (*PLANTED, *PLANTED_IN_A_CLUSTER)
SMOKE = (PLANTED[0], PLANTED_IN_A_CLUSTER[0])
"""Run with every change; the others, which rarely change, run at night."""


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Planted) -> None:
    """Every planted fault still finds the code that the fault replaces."""
    with planted(fault):
        pass


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in SMOKE else pytest.mark.nightly, id=fault.name)
        for fault in ALL
    ],
)
def test_a_planted_fault_is_caught(fault: Planted) -> None:
    """At least one seed of the range shows the planted fault, and passes without the fault."""
    seed = caught(fault)
    assert seed is not None, f"{fault.name}: not caught in {fault.seeds} seeds"
    outcome = played(seed, rates=fault.rates, cluster=fault.cluster)
    assert not outcome.trouble, outcome.told()


def caught(fault: Planted) -> int | None:
    """Return the first seed of the range that shows the fault, or None if no seed does."""
    with planted(fault):
        for seed in range(fault.first, fault.first + fault.seeds):
            outcome = run(seed, adjust=fault.adjust, cluster=fault.cluster)
            if outcome.trouble:
                assert f"--seed {seed}" in outcome.told()
                return seed
    return None
