"""Measure the seconds until `make up` places its first pod on a fresh machine.

    python -m tests.benchmarks.newcomer --json

The target is 90 seconds cold, with everything installed from a local folder, and 10 seconds warm.
It needs root and podman; see tests.support.newcomer."""

import tempfile
from argparse import Namespace
from pathlib import Path

from tests.benchmarks.telling import parser_of, tell
from tests.support.newcomer import placements


def measure(_given: Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        found = placements(Path(folder))
    return {f"{name}_s": float(found[name]) for name in ("cold", "warm")}


def main() -> None:
    tell(parser_of(__doc__), measure)


if __name__ == "__main__":
    main()
