"""Write nats.conf from the table of identities: `make generate`.

    python -m tools.nats_configuration             write it
    python -m tools.nats_configuration --check     report whether it would change

Invariant: the output is a function of the table alone."""

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
"""The package's file and the chart's two (with and without an auth callout), with their users."""


def differing() -> list[Path]:
    """Return the generated files that differ in the tree."""
    return [
        path
        for path, users in TARGETS.items()
        if not path.exists() or path.read_text("utf-8") != configuration(users)
    ]


def main() -> int:
    """Write the files, or with --check print which differ. Return the exit status."""
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
