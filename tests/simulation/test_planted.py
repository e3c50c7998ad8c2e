"""The simulation notices every planted fault within the fault's number of seeds.

The same seed passes without the fault, so the fault is the cause of the failure."""

import pytest

from tests.simulation.planted import PLANTED, Planted, planted
from tests.simulation.planted_cluster import PLANTED_IN_A_CLUSTER
from tests.simulation.played import played
from tests.simulation.world import run

ALL = (*PLANTED, *PLANTED_IN_A_CLUSTER)
SMOKE = (PLANTED[0], PLANTED_IN_A_CLUSTER[0])
"""Faults that are tested with every change. The others are tested at night."""


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Planted) -> None:
    """The code that each planted fault replaces still exists."""
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
    """At least one of the fault's seeds fails with the planted fault, and passes without it."""
    seed = caught(fault)
    assert seed is not None, f"{fault.name}: not caught in {fault.seeds} seeds"
    outcome = played(seed, rates=fault.rates, cluster=fault.cluster)
    assert not outcome.trouble, outcome.told()


def caught(fault: Planted) -> int | None:
    """Return the first of the fault's seeds that fails with the fault, or None if all pass."""
    with planted(fault):
        for seed in range(fault.first, fault.first + fault.seeds):
            outcome = run(seed, adjust=fault.adjust, cluster=fault.cluster)
            if outcome.trouble:
                assert f"--seed {seed}" in outcome.told()
                return seed
    return None
