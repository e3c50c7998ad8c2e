"""The two commands of the README on a fresh machine: Debian 12, Python, pip, make, and no root.

There is no network, no Docker, no Kubernetes, no GPU and an empty home; what pip installs lies in a
folder, as it would in a mirror. So the times measured are ours, not the network's.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.containers import alone, fresh_machine, prepare_wheels, skip_unless_here, tell
from tests.tidy.tree import ROOT, files

skip_unless_here()
pytestmark = [
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
COLD_S = 90
WARM_S = 10


def test_make_up_reaches_its_first_placement_and_ends_cleanly(tmp_path: Path) -> None:
    """Cold within 90 seconds, warm within 10, and Ctrl-C leaves no process."""
    with alone():
        podman, image = fresh_machine()
        wheels = prepare_wheels()
    clone = tmp_path / "apportion"
    for path in files():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, clone / path)
    said = podman.run(
        "run", "--rm", "--network=none", f"--volume={wheels}:/wheels:ro",
        "--env=PIP_NO_INDEX=1", "--env=PIP_FIND_LINKS=/wheels", f"--volume={clone}:/given:ro",
        image, "bash", "-c",
        "cp -r /given ~/apportion && cd ~/apportion && bash tests/support/fresh_machine.sh",
        timeout_s=300,
    )  # fmt: skip
    measured = dict(line.split() for line in said.splitlines() if line.startswith(("cold", "warm")))
    tell(
        f"first placement on a fresh machine: {measured['cold']} s cold, {measured['warm']} s warm"
    )
    assert float(measured["cold"]) < COLD_S
    assert float(measured["warm"]) < WARM_S
    assert measured["cold-left"] == measured["warm-left"] == "0", said
