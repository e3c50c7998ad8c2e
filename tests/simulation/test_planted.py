"""Every planted fault is caught within its number of seeds, so the simulation can fail."""

import pytest

from tests.simulation.planted import PLANTED, Planted, planted
from tests.simulation.planted_cluster import PLANTED_IN_A_CLUSTER
from tests.simulation.world import run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", [*PLANTED, *PLANTED_IN_A_CLUSTER], ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Planted) -> None:
    """Some seed in the stated range sees it, and tells what it saw."""
    with planted(fault):
        for seed in range(fault.seeds):
            outcome = run(seed, adjust=fault.adjust, cluster=fault.cluster)
            if outcome.trouble:
                assert f"--seed {seed}" in outcome.told()
                return
    raise AssertionError(f"{fault.name}: not caught in {fault.seeds} seeds")
