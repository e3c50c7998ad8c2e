"""Which of our modules run compiled, and whether they still are what their sources say.

In a checkout a source may be newer than what was compiled from it, after a pull for instance. What
a wheel brought belongs together, and has the times at which it was unpacked, in whatever order.
Invariant: no service runs a module that is older than its source."""

import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def compiled(package: Path = PACKAGE) -> list[Path]:
    """The compiled modules, which Python takes before their sources."""
    return sorted(package.rglob(f"*{SUFFIX}"))


def outdated(package: Path = PACKAGE) -> list[Path]:
    """Those whose source was changed, or taken away, after they had been made; none of a wheel."""
    if any(package.parent.glob(f"{package.name}-*.dist-info")):
        return []
    return [each for each in compiled(package) if _is_outdated(each)]


def _is_outdated(made: Path) -> bool:
    source = made.with_name(made.name.removesuffix(SUFFIX) + ".py")
    return not source.exists() or source.stat().st_mtime > made.stat().st_mtime
