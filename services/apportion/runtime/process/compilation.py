"""Finds compiled modules that are older than their source, for example after a git pull.

Invariant: no service runs a module that is older than its source."""

import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def compiled(package: Path = PACKAGE) -> list[Path]:
    """Return the compiled modules, which Python loads in preference to their sources."""
    return sorted(package.rglob(f"*{SUFFIX}"))


def outdated(package: Path = PACKAGE) -> list[Path]:
    """Return compiled modules whose source has changed or is gone; in a wheel, return none."""
    if any(package.parent.glob(f"{package.name}-*.dist-info")):
        return []
    found = []
    for made in compiled(package):
        source = made.with_name(made.name.removesuffix(SUFFIX) + ".py")
        if not source.exists() or source.stat().st_mtime > made.stat().st_mtime:
            found.append(made)
    return found
