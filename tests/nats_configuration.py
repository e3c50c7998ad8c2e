"""Writes nats.conf out of the table of identities: `make generate`.

    python -m tests.nats_configuration             write it
    python -m tests.nats_configuration --check     say whether it would change

Invariant: what is written is a function of the table alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from click import echo

from apportion.core.identity.configuration import configuration

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (
    ROOT / "services/apportion/runtime/jetstream/nats.conf",
    ROOT / "deploy/helm/apportion/files/nats.conf",
)
"""The one of the package, and the chart's."""


def differing() -> list[Path]:
    """Those that stand in the tree with another text."""
    return [path for path in TARGETS if path.read_text("utf-8") != configuration()]


def main() -> int:
    """Write them, or say what differs; the exit code."""
    if "--check" in sys.argv[1:]:
        late = differing()
        for path in late:
            echo(f"{path.relative_to(ROOT)}: is out of date; run: make generate")
        return int(bool(late))
    for path in TARGETS:
        path.write_text(configuration(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
