"""How soon `make up` places its first pod on a fresh machine, in seconds.

    python -m tests.benchmarks.newcomer --json

Wanted are 90 seconds cold, with everything installed from a folder, and 10 seconds warm. It needs
root and podman; see tests.support.newcomer."""

import tempfile
from argparse import Namespace
from pathlib import Path

from tests.benchmarks.telling import parser_of, tell
from tests.support.newcomer import placements


def measure(_given: Namespace) -> dict[str, float]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        found = placements(Path(folder))
    return {f"{name}_s": float(found[name]) for name in ("cold", "warm")}


def main() -> None:
    """Print the figures."""
    tell(parser_of(__doc__), measure)


if __name__ == "__main__":
    main()
