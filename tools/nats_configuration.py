"""Writes nats.conf out of the table of identities: `make generate`.

    python -m tools.nats_configuration             write it
    python -m tools.nats_configuration --check     say whether it would change

Invariant: what is written is a function of the table alone."""

from __future__ import annotations

import sys
from pathlib import Path

from click import echo

from apportion.core.identity.configuration import WITH_CALLOUT, WITH_PASSWORDS, User, configuration

ROOT = Path(__file__).resolve().parents[1]
TARGETS: dict[Path, tuple[User, ...]] = {
    ROOT / "services/apportion/runtime/jetstream/nats.conf": WITH_PASSWORDS,
    ROOT / "deploy/helm/apportion/files/nats.conf": WITH_PASSWORDS,
    ROOT / "deploy/helm/apportion/files/nats-callout.conf": WITH_CALLOUT,
}
"""The one of the package, and the chart's, without a callout and with it; and whom each knows."""


def differing() -> list[Path]:
    """Those that stand in the tree with another text."""
    return [
        path
        for path, users in TARGETS.items()
        if not path.exists() or path.read_text("utf-8") != configuration(users)
    ]


def main() -> int:
    """Write them, or say what differs; the exit code."""
    if "--check" in sys.argv[1:]:
        late = differing()
        for path in late:
            echo(f"{path.relative_to(ROOT)}: is out of date; run: make generate")
        return int(bool(late))
    for path, users in TARGETS.items():
        path.write_text(configuration(users), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
