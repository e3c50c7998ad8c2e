"""Check dependencies: every imported project is declared, and every declared project is used.

An undeclared import works only where some other package happens to install it."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from tests.tidy.offence import Offence
from tests.tidy.tree import parsed

OURS = {"apportion", "apportion_schemas"}


def imported(sources: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the third-party modules that are imported, by top-level name.

    The value for a module is one file and line that imports it."""
    found: dict[str, tuple[str, int]] = {}
    for path, source in sources.items():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                found.setdefault(name.partition(".")[0], (path, node.lineno))
    foreign = found.keys() - OURS - sys.stdlib_module_names
    return {name: found[name] for name in sorted(foreign)}


def project_name(requirement: str) -> str:
    """Return the normalized project name in a requirement: `PyYAML>=6` gives `pyyaml`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def mismatches(
    sources: Mapping[str, str],
    declared: Iterable[str],
    *,
    providers: Mapping[str, list[str]],
    not_imported: Iterable[str],
) -> Iterator[Offence]:
    """Yield imports without a declaration, and declarations without an import.

    `providers` maps a module to the projects that provide it. `not_imported` are projects whose use
    is not an import, such as a binary."""
    wanted = {project_name(requirement) for requirement in declared}
    used = {project_name(name) for name in not_imported}
    for module, (path, line) in imported(sources).items():
        projects = {project_name(name) for name in providers.get(module, [module])}
        used |= projects
        if not projects & wanted:
            yield Offence(path, line, f"imports {module}, which pyproject.toml does not depend on")
    for project in sorted(wanted - used):
        yield Offence("pyproject.toml", 0, f"depends on {project}, which nothing imports")
