"""Run the tests that a change can break: `make test-changed`, for use during development.

A test file is chosen if it imports a changed file, directly or indirectly. With `--processes`, also
if it starts services or verbs, which may run any module of the product. A changed file that is not
Python counts as part of the Python files that name it. `.ci/run` always runs every test.

    python -m tools.changed main            this branch and uncommitted changes, against main
    python -m tools.changed --list main     only print the files"""

import argparse
import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from click import echo

from tests.tidy.tree import ROOT, parsed, python_files

ROOTS = ("services/", "schemas/", "")
"""Folders in which Python looks for modules, relative to the root of the repository."""
PRODUCT = "services/apportion/"
STARTS = ("apportion.cli.main", "from apportion.{", ".venv/bin/apportion")
"""Strings that mark a file as starting services or verbs as processes."""
STARTED_BY_OTHERS = "tests/support/starts.py"
"""Forks the processes of other tests. Every test imports it, so such imports show nothing."""
ALWAYS = ("tests/tidy",)
MANY = 0.3
"""The share of the test files from which on the summary names a shorter way."""


def changed_since(base: str) -> set[str]:
    """Return the paths that differ from the branch point at `base`, including deleted and untracked
    files."""

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        left = git("merge-base", "HEAD", base)
    except subprocess.CalledProcessError:
        sys.exit(f"there is no {base} to compare with: name another, as in BASE=origin/main")
    listed = git("diff", "--name-only", "--no-renames", left)
    untracked = git("ls-files", "--others", "--exclude-standard")
    return set(f"{listed}\n{untracked}".split())


def chosen(
    changed: Iterable[str], sources: Mapping[str, str], *, processes: bool = False
) -> list[str]:
    """Return the test files in `sources` (path to text) that depend on a changed file."""
    users: dict[str, set[str]] = defaultdict(set)
    for path, source in sources.items():
        for module in _imported(path, source):
            users[module].add(path)
    starters = {path for path in sources if processes and _starts(path, sources[path])}
    reached: set[str] = set()
    new = set(changed)
    while new:
        reached |= new
        new = {user for path in new for user in _users_of(path, users, starters, sources)} - reached
    return sorted(path for path in reached & set(sources) if _is_test(path))


def _users_of(
    path: str, users: Mapping[str, set[str]], starters: set[str], sources: Mapping[str, str]
) -> set[str]:
    """Return the files that directly depend on the file at `path`."""
    if not path.endswith(".py"):
        name = PurePath(path).name
        return {user for user, source in sources.items() if name in source}
    found = {user for module in _modules(path) for user in users.get(module, ())}
    if path.startswith(PRODUCT):
        found |= starters
    if path.endswith("/conftest.py"):
        found |= {user for user in sources if user.startswith(path.removesuffix("conftest.py"))}
    return found


def _starts(path: str, source: str) -> bool:
    other = path != STARTED_BY_OTHERS and path.startswith("tests/")
    return other and any(text in source for text in STARTS)


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePath(path).name.startswith("test_")


def _modules(path: str) -> Iterator[str]:
    """Yield the module name under which a file can be imported, if there is one."""
    for root in ROOTS:
        if path.startswith(root):
            name = path.removeprefix(root).removesuffix(".py").removesuffix("/__init__")
            yield name.replace("/", ".")
            return


def _imported(path: str, source: str) -> Iterator[str]:
    """Yield every module that a file may import; any imported name may be a module."""
    folders = PurePath(next(_modules(path)).replace(".", "/"))
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = folders.parents[node.level - 1].as_posix().replace("/", ".")
                module = f"{above}.{module}".rstrip(".")
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)


def summary(count: int, of: int) -> str:
    """Return how many test files are chosen; if nearly all, also suggest a shorter command."""
    said = f"{count:,} of {of:,} test files import what changed, directly or indirectly"
    if count < of * MANY:
        return said
    return (
        f"{said}. Nearly every test reaches core: until you are done, run the tests of what you "
        "change, such as `.venv/bin/python -m pytest tests/unit/core/placement`"
    )


def main() -> None:
    """Run the chosen tests by replacing this process with pytest, or with --list print their
    files."""
    parser = argparse.ArgumentParser(prog="python -m tools.changed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("base", nargs="?", default="main", help="what the change is made to")
    what = "also the tests that start services or verbs as processes"
    parser.add_argument("--processes", action="store_true", help=what)
    parser.add_argument("--list", action="store_true", help="only print the files")
    given = parser.parse_args()
    sources = python_files()
    found = chosen(changed_since(given.base), sources, processes=given.processes)
    tests = [*ALWAYS, *(path for path in found if not path.startswith(ALWAYS))]
    echo(summary(len(found), sum(map(_is_test, sources))), err=True)
    if given.list:
        echo("\n".join(tests))
        return
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not nightly", *tests]
    os.execv(command[0], command)  # noqa: S606 - not a child: a signal from make reaches pytest


if __name__ == "__main__":
    main()
