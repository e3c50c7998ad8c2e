"""Find compiled modules that are older than their source, as after a pull.

Invariant: no service runs a module that is older than its source."""

import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def compiled(package: Path = PACKAGE) -> list[Path]:
    """List the compiled modules, which Python prefers to their sources."""
    return sorted(package.rglob(f"*{SUFFIX}"))


def outdated(package: Path = PACKAGE) -> list[Path]:
    """List compiled modules whose source changed or is gone.

    There are none in a wheel, where file times mean nothing."""
    if any(package.parent.glob(f"{package.name}-*.dist-info")):
        return []
    return [each for each in compiled(package) if _is_outdated(each)]


def _is_outdated(made: Path) -> bool:
    source = made.with_name(made.name.removesuffix(SUFFIX) + ".py")
    return not source.exists() or source.stat().st_mtime > made.stat().st_mtime
