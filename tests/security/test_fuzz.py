"""Twenty seconds of an agent and an auditor who try everything that they may; CI has no hour."""

import json
import subprocess
import sys

import pytest

from tests.security.fuzz import ENOUGH

SECONDS = "20"


@pytest.mark.timeout(180)
def test_whoever_tries_everything_harms_nobody() -> None:
    """`verify` passes, no other node changed, every pod got its place as fast as before."""
    command = [sys.executable, "-m", "tests.security.fuzz", "--seconds", SECONDS, "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert found["ok"]
    for deeds in found["attacks"].values():
        assert deeds["permitted"] > ENOUGH
        assert deeds["forbidden"] > ENOUGH
    assert set(found["refused_by_intakes"]) >= {"foreign-node", "implausible-device", "too-many"}
