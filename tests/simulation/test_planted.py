"""Every planted fault is caught within its number of seeds, so the simulation can fail.

Without it the same run is right: what was caught is the fault, and not what the run turns on."""

import pytest

from tests.simulation.planted import PLANTED, Planted, planted
from tests.simulation.planted_cluster import PLANTED_IN_A_CLUSTER
from tests.simulation.played import played
from tests.simulation.world import run

ALL = (*PLANTED, *PLANTED_IN_A_CLUSTER)
SMOKE = (PLANTED[0], PLANTED_IN_A_CLUSTER[0])
"""The others say how sharp the simulation is, which changes seldom: they are tried at night."""


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Planted) -> None:
    """What it replaces is where it was."""
    with planted(fault):
        pass


@pytest.mark.timeout(900)  # this lane gives way to all others
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in SMOKE else pytest.mark.nightly, id=fault.name)
        for fault in ALL
    ],
)
def test_a_planted_fault_is_caught(fault: Planted) -> None:
    """Some seed in the range sees it and tells what it saw; without it that seed is right."""
    seed = caught(fault)
    assert seed is not None, f"{fault.name}: not caught in {fault.seeds} seeds"
    outcome = played(seed, rates=fault.rates, cluster=fault.cluster)
    assert not outcome.trouble, outcome.told()


def caught(fault: Planted) -> int | None:
    """The first seed of the range at which it shows."""
    with planted(fault):
        for seed in range(fault.first, fault.first + fault.seeds):
            outcome = run(seed, adjust=fault.adjust, cluster=fault.cluster)
            if outcome.trouble:
                assert f"--seed {seed}" in outcome.told()
                return seed
    return None
