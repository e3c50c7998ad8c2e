"""Limit the length of functions, classes and files. Ruff's `max-complexity` limits branches."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from tests.tidy.offence import Offence
from tests.tidy.tree import parsed

FUNCTION_HARD = 60
CLASS_HARD = 300
FILE_HARD = 800


@cache
def functions(source: str) -> list[tuple[str, int, int]]:
    """Return the qualified name, first line and length of every function, without docstrings."""

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
    """Yield classes over the limit; docstrings of the class and its methods are not counted."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            inside = (each for each in ast.walk(node) if each is not node)
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            explained = sum(_docstring(each) for each in inside if isinstance(each, kinds))
            size = _size(node) - explained
            if size > CLASS_HARD:
                limit = f"{node.name} has {size} lines; {CLASS_HARD} is the limit: split it"
                yield Offence(path, node.lineno, limit)


def long_functions(path: str, source: str) -> Iterator[Offence]:
    """Yield the functions that have more lines than the limit."""
    for name, line, size in functions(source):
        if size > FUNCTION_HARD:
            yield Offence(path, line, f"{name} has {size} lines; {FUNCTION_HARD} is the limit")


def long_files(sources: Mapping[str, str]) -> Iterator[Offence]:
    """Yield the files that have more lines than the limit."""
    for path, source in sources.items():
        lines = source.count("\n")
        if lines > FILE_HARD:
            yield Offence(path, lines, f"{lines} lines; {FILE_HARD} is the limit: split it")
