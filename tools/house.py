"""Measure the code base by a table of figures, each with its limit.

    python -m tools.house                    the table
    python -m tools.house --list circles     also the places that one figure counts
    python -m tools.house --root ../before   another checkout

The docstring of each figure's function defines what it counts. tests/tidy enforces the structural
figures: a change may not raise one above its limit plus its allowance. The others help to decide
what to simplify next."""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from click import echo

from tests.tidy import sizes
from tests.tidy.tree import ROOT, parsed

SHIPPED = ("services", "schemas")
WRITTEN = {".py", ".js", ".css", ".html"}
MODULES_MAX = 20
ONE_IMPORTER_LINES = 80
PROSE_WORDS = 4
VERB = re.compile(r'"(apportion\.cli\.[\w.]+):\w+"')
WORD = re.compile(r"\b_\w+")
BOUNDARIES = ("main", "port", "plugin")
"""Words in the names of modules that may stay small because they are an entry point."""


class House:
    """The source files of one checkout, each read once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[str]:
        """Return the hand-written files that we ship: Python, JavaScript, CSS and HTML."""
        found = (path for top in SHIPPED for path in (self.root / top).rglob("*"))
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in found
            if path.suffix in WRITTEN and path.is_file()
        )

    @cached_property
    def sources(self) -> dict[str, str]:
        """Return the source of every Python file that we ship, by path."""
        return {path: self.read(path) for path in self.files if path.endswith(".py")}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return the path of every module that we ship, by dotted name."""
        return {dotted(path): path for path in self.sources}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Map each of our modules to those that it imports, also within functions."""
        return {
            name: set(imported(parsed(self.sources[path]), self.modules)) - {name}
            for name, path in self.modules.items()
        }

    @cached_property
    def tests(self) -> dict[str, str]:
        """Return the source of every Python file of the tests, by path."""
        found = (self.root / "tests").rglob("*.py")
        return {path.relative_to(self.root).as_posix(): path.read_text("utf-8") for path in found}

    def read(self, path: str) -> str:
        """Return the text of a file of the checkout."""
        return (self.root / path).read_text("utf-8")


def dotted(path: str) -> str:
    """Return the dotted name under which Python imports a file."""
    return ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")


def imported(tree: ast.Module, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that a module imports; for `from package import name`, also the submodule.

    Imports under TYPE_CHECKING are left out."""
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules:
                    yield inner
                elif node.module in modules:
                    yield node.module


def written_files(house: House) -> list[str]:
    """Files of Python, JavaScript, CSS and HTML in services/ and schemas/."""
    return house.files


def python_lines(house: House) -> list[str]:
    """Lines of Python in services/ and schemas/, including empty ones."""
    return [line for source in house.sources.values() for line in source.splitlines()]


def used_once(house: House) -> list[str]:
    """Private functions whose name occurs twice in their file: definition and one use."""
    found = []
    for path, source in house.sources.items():
        words = Counter(WORD.findall(source))
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and words[node.name] == 2:
                found += [f"{path}:{node.lineno}: {node.name}"] * (not node.name.startswith("__"))
    return found


def prose_in_tests(house: House) -> list[str]:
    """String literals of four words or more in the assertions of test functions."""
    found = []
    for path, source in house.tests.items():
        for function in ast.walk(parsed(source)):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(function, kinds) and function.name.startswith("test_"):
                found += [
                    f"{path}:{literal.lineno}: {literal.value!r}"
                    for node in ast.walk(function)
                    if isinstance(node, ast.Assert)
                    for literal in ast.walk(node.test)
                    if isinstance(literal, ast.Constant) and _is_prose(literal.value)
                ]
    return found


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and (
        sum(any(map(str.isalpha, word)) for word in value.split()) >= PROSE_WORDS
    )


def full_folders(house: House) -> list[str]:
    """Folders of Python with more than 20 modules, not counting `__init__`."""
    count = Counter(
        Path(path).parent.as_posix() for path in house.sources if not path.endswith("__init__.py")
    )
    return [f"{folder}: {many}" for folder, many in sorted(count.items()) if many > MODULES_MAX]


def circles(house: House) -> list[str]:
    """Groups of modules that import each other, directly or in a circle."""
    return [" ".join(sorted(group)) for group in _components(house.imports) if len(group) > 1]


def _components(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm, without
    recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        work = [(root, iter(graph[root]))] if root not in index else []
        while work:
            name, successors = work[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                stack.append(name)
                on_stack.add(name)
            for successor in successors:
                if successor not in index:
                    work.append((successor, iter(graph[successor])))
                    break
                if successor in on_stack:
                    low[name] = min(low[name], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    at = stack.index(name)
                    yield stack[at:]
                    on_stack.difference_update(stack[at:])
                    del stack[at:]


def verbs_importing_verbs(house: House) -> list[str]:
    """Imports from one verb's module into another's; verbs are the rows of cli/main.py."""
    verbs = set(VERB.findall(house.read("services/apportion/cli/main.py")))
    return [
        f"{verb} imports {other}"
        for verb in sorted(verbs)
        for other in sorted(house.imports.get(verb, set()) & verbs)
    ]


def long_functions(house: House) -> list[str]:
    """Functions of more than 60 lines, not counting docstrings."""
    found = (sizes.long_functions(path, source) for path, source in house.sources.items())
    return [str(each) for offences in found for each in offences]


def complex_functions(house: House) -> list[str]:
    """Functions for which ruff's limit of complexity 12 is lifted by a comment."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, source in house.sources.items()
        for number, line in enumerate(source.splitlines(), 1)
        if "noqa: C901" in line
    ]


def long_classes(house: House) -> list[str]:
    """Classes of more than 300 lines, not counting docstrings."""
    found = (sizes.long_classes(path, source) for path, source in house.sources.items())
    return [str(each) for offences in found for each in offences]


def long_files(house: House) -> list[str]:
    """Files of more than 800 lines."""
    return [str(each) for each in sizes.long_files({p: house.read(p) for p in house.files})]


def one_importer(house: House) -> list[str]:
    """Modules of fewer than 80 lines that only one module imports, unless they are a boundary.

    A boundary is a port (it has a Protocol), a plugin, a service's main, a verb, a schema, a
    vendor, or a module that another layer imports (core stays pure)."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, others in house.imports.items():
        for other in others:
            importers[other].add(name)
    verbs = set(VERB.findall(house.read("services/apportion/cli/main.py")))
    return [
        f"{path}: {house.sources[path].count(chr(10))} lines, for {min(importers[name])}"
        for name, path in house.modules.items()
        if len(importers[name]) == 1
        and min(importers[name]).split(".")[1:2] == name.split(".")[1:2]
        and name not in verbs
        and path.startswith("services/")
        and Path(path).stem not in (*BOUNDARIES, "__init__")
        and Path(path).parent.name != "vendors"
        and house.sources[path].count("\n") < ONE_IMPORTER_LINES
        and "(Protocol" not in house.sources[path]
    ]


class Figure(NamedTuple):
    """A figure of the code base, with its limit. tests/tidy enforces the `structural` figures.

    The figure may exceed its limit by `owed`, which may only be lowered."""

    name: str
    places: Callable[[House], list[str]]
    limit: int
    structural: bool = False
    owed: int = 0

    def excess(self, count: int) -> str:
        """Return the excess of `count` over the limit, as text with the allowance; "" if there is
        none."""
        over = count - self.limit
        if over <= 0:
            return ""
        if not self.structural:
            return f"{over:,} over the limit, not enforced"
        more = over - self.owed
        return f"{over:,} over the limit: " + (
            f"{more:,} more than allowed" if more > 0 else f"{self.owed:,} allowed for now"
        )


FIGURES = (
    Figure("files", written_files, 620),
    Figure("lines", python_lines, 83_000),
    Figure("used-once", used_once, 800),
    Figure("prose", prose_in_tests, 100, structural=True),
    Figure("folders", full_folders, 0, structural=True),
    Figure("circles", circles, 0, structural=True),
    Figure("verbs", verbs_importing_verbs, 0, structural=True),
    Figure("functions", long_functions, 0, structural=True),
    Figure("complexity", complex_functions, 0, structural=True),
    Figure("classes", long_classes, 0, structural=True),
    Figure("long-files", long_files, 0, structural=True),
    Figure("one-importer", one_importer, 0, structural=True, owed=1),
)


def table(house: House) -> Iterator[str]:
    """Yield a line for each measure of the code: name, current value, limit and definition."""
    yield f"{'figure':<14}{'now':>8}{'limit':>8}  what is counted"
    for figure in FIGURES:
        now = len(figure.places(house))
        excess = figure.excess(now)
        over = excess and f"  <-- {excess}; see --list {figure.name}"
        says = (figure.places.__doc__ or "").partition("\n")[0]
        yield f"{figure.name:<14}{now:>8,}{figure.limit:>8,}  {says}{over}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or with --list the places that one figure counts."""
    by_name = {figure.name: figure for figure in FIGURES}
    parser = argparse.ArgumentParser(prog="python -m tools.house")
    parser.add_argument("--list", choices=by_name, dest="listed", help="what one figure counts")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    asked = parser.parse_args(arguments)
    house = House(asked.root)
    for line in by_name[asked.listed].places(house) if asked.listed else table(house):
        echo(line)


if __name__ == "__main__":
    main()
