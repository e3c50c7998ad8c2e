"""Check purity rules that lint and import contracts cannot express.

Core and schemas must not iterate over unsorted sets, or call builtins with random results."""

import ast
from collections.abc import Iterator

from tests.tidy.offence import Offence
from tests.tidy.tree import parsed

PURE_ROOTS = ("services/apportion/core/", "schemas/apportion_schemas/")
IMPURE_BUILTINS = {
    "hash": "differs between processes: use hashlib over bytes",
    "id": "differs between processes: use a name",
    "open": "touches the outside: the caller reads",
    "input": "touches the outside: the caller reads",
    "print": "touches the outside: say it in the result",
}
POLLING = "tests/support/polling.py"  # the only place in the tests that may sleep


def impure(path: str, source: str) -> Iterator[Offence]:
    """Yield calls of impure builtins and loops over sets, in core and schemas."""
    if not path.startswith(PURE_ROOTS):
        return
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            reason = IMPURE_BUILTINS.get(node.func.id)
            if reason:
                yield Offence(path, node.lineno, f"{node.func.id}() {reason}")
        if isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
            line = node.iter.lineno
            yield Offence(path, line, "the order of a set depends on the hash seed: sort it")


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"set", "frozenset"}
    )


def sleeps(path: str, source: str) -> Iterator[Offence]:
    """Yield each call of a sleep function in tests and tools. `asyncio.sleep(0)` is allowed."""
    if not path.startswith(("tests/", "tools/")) or path == POLLING:
        return
    tree = parsed(source)
    bare = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio"}
        for alias in node.names
        if alias.name == "sleep"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _sleeps(node.func, bare) and not _gives_way(node):
            yield Offence(path, node.lineno, f"wait for a condition: see {POLLING}")


def _sleeps(function: ast.expr, bare: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in bare
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "sleep"
        and isinstance(function.value, ast.Name)
        and function.value.id in {"time", "asyncio"}
    )


def _gives_way(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and first.value == 0
