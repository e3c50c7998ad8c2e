"""Run the README's two commands on a fresh machine: Debian 12 with Python, pip and make, without
root.

There is no network, no Docker, no Kubernetes and no GPU, and the home folder is empty. pip installs
from a local folder that acts as a mirror, so that the network is not measured."""

import shutil
from pathlib import Path

from tests.support.containers import alone, fresh_machine, prepare_wheels
from tests.tidy.tree import ROOT, files


def placements(folder: Path) -> dict[str, str]:
    """Run `make up` first cold and then warm, and stop each run with Ctrl-C.

    Return the seconds to the first placement and the number of left-over processes of each run."""
    with alone():
        podman, image = fresh_machine()
        wheels = prepare_wheels()
    clone = folder / "apportion"
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
    words = (line.split() for line in said.splitlines() if line.startswith(("cold", "warm")))
    return dict(words)
