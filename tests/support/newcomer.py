"""The two commands of the README on a fresh machine: Debian 12, Python, pip, make, and no root.

There is no network, no Docker, no Kubernetes, no GPU and an empty home; what pip installs lies in a
folder, as it would in a mirror. So the times measured are ours, not the network's."""

import shutil
from pathlib import Path

from tests.support.containers import alone, fresh_machine, prepare_wheels
from tests.tidy.tree import ROOT, files


def placements(folder: Path) -> dict[str, str]:
    """Of `make up` cold and warm, seconds to the first placement and processes that outlived it."""
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
