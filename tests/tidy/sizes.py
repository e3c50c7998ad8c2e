"""Sizes: a function fits on a screen, a class and a file into a head.

A function over the soft limit is listed with its size in `long_functions.toml`; the list may only
shrink. A docstring is not counted: explaining is not complexity.
"""

import ast
import statistics
from collections.abc import Iterator, Mapping
from functools import cache

from tests.tidy.offence import Offence
from tests.tidy.tree import parsed

FUNCTION_SOFT = 40
FUNCTION_HARD = 70
CLASS_HARD = 250
FILE_HARD = 600
FILE_MEDIAN = 150
FILE_TRIVIAL = 10  # package markers would pull the median down


@cache
def functions(source: str) -> list[tuple[str, int, int]]:
    """Qualified name, first line and size in lines (docstring left out) of every function."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child.lineno, _size(child)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    return list(visit(parsed(source), ""))


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring(node)


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    first = node.body[0]
    if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def long_classes(path: str, source: str) -> Iterator[Offence]:
    """Classes over the limit; the docstrings of their methods are not counted either."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            inside = (each for each in ast.walk(node) if each is not node)
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            explained = sum(_docstring(each) for each in inside if isinstance(each, kinds))
            size = _size(node) - explained
            if size > CLASS_HARD:
                limit = f"{node.name} has {size} lines; {CLASS_HARD} is the limit: split it"
                yield Offence(path, node.lineno, limit)


def long_functions(path: str, source: str, listed: Mapping[str, int]) -> Iterator[Offence]:
    """Functions over the hard limit, or over the soft one and not listed with their size."""
    for name, line, size in functions(source):
        key = f"{path}::{name}"
        if size > FUNCTION_HARD:
            yield Offence(path, line, f"{name} has {size} lines; {FUNCTION_HARD} is the hard limit")
        elif size > FUNCTION_SOFT and size > listed.get(key, 0):
            allowed = listed.get(key, FUNCTION_SOFT)
            yield Offence(
                path, line, f"{name} has {size} lines where {allowed} are allowed: split it"
            )
        elif key in listed and size < listed[key]:
            yield Offence(
                path, line, f"{name} shrank to {size}: lower or remove its entry in the list"
            )


def stale_entries(sources: Mapping[str, str], listed: Mapping[str, int]) -> Iterator[Offence]:
    """Entries of the list whose function is gone."""
    known = {
        f"{path}::{name}" for path, source in sources.items() for name, *_ in functions(source)
    }
    for key in sorted(set(listed) - known):
        yield Offence(
            key.split("::")[0], 0, f"{key} is listed as long but does not exist: remove it"
        )


def long_files(sources: Mapping[str, str]) -> Iterator[Offence]:
    """Files over the hard limit, and a median that drifted."""
    lengths = {path: source.count("\n") for path, source in sources.items()}
    for path, lines in lengths.items():
        if lines > FILE_HARD:
            yield Offence(path, lines, f"{lines} lines; {FILE_HARD} is the hard limit: split it")
    counted = [lines for lines in lengths.values() if lines >= FILE_TRIVIAL]
    if counted and statistics.median(counted) > FILE_MEDIAN:
        median = statistics.median(counted)
        yield Offence(".", 0, f"the median file has {median} lines; at most {FILE_MEDIAN}")
