"""Sentences are made last, and no code reads one again: what it needs is a field of an answer.

A text is a sentence if it comes out of a field of an answer that holds one, of a function that
words something, or of an error.
"""

import ast
from collections.abc import Iterator
from typing import Final

from tests.tidy.offence import Offence

FIELDS: Final = frozenset((
    "sentence", "text", "summary", "unblocked_by", "cause", "words", "reason_words", "spared",
    "room", "choice", "rejection", "unready", "needed_words", "available_words", "missing", "error",
    "fix", "message", "when", "problem",
))  # fmt: skip
"""Fields that hold sentences, of answers and of errors."""
WORDERS: Final = ("_words", "_text", "_with_text")
"""How the names of functions end that make sentences."""
MODULES: Final = frozenset((
    "words", "limit_words", "refusal_text", "constraint_text", "wishes", "answer_text", "lines",
))  # fmt: skip
"""Modules of `core/explain` all of whose functions do."""
ERRORS: Final = frozenset(("error", "died", "failure", "refused", "wrong", "problem", "exc"))
METHODS: Final = frozenset((
    "split", "rsplit", "partition", "rpartition", "replace", "startswith", "endswith",
    "removeprefix", "removesuffix", "find", "index", "count",
))  # fmt: skip
OUTSIDE: Final = {
    "services/apportion/binder/kubernetes_gangs.py": "the API server says only here which it means",
    "services/apportion/callout/tokens.py": "the API server's error may have the token in it",
    "services/apportion/core/workloads/dialects/vendors.py": "words of models, in the catalogue",
    "services/apportion/runtime/jetstream/refusals.py": "nats-py gives no code of this error",
    "services/apportion/runtime/files/safe_yaml.py": "the parser's message, cut to its first line",
}
"""Modules that read a text of others, with the reason."""
PATTERNS: Final = frozenset((
    "match", "fullmatch", "search", "sub", "split", "findall", "finditer", "subn",
))  # fmt: skip


def reads(path: str, source: str) -> Iterator[Offence]:
    """Where a product module takes a sentence apart, or looks for something in one."""
    if not path.startswith("services/") or path in OUTSIDE:
        return
    for node in ast.walk(ast.parse(source)):
        read = _read(node)
        if isinstance(node, ast.expr) and read is not None and _is_sentence(read):
            said = ast.unparse(node)
            yield Offence(path, node.lineno, f"{said} reads a sentence: give the fact a field")


def _read(node: ast.AST) -> ast.expr | None:
    """The text that is read here."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in PATTERNS and node.args and _is_pattern(node.func.value):
            return node.args[-1]
        if node.func.attr in METHODS and not _into_lines(node):
            return node.func.value
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.comparators[0]
    return None


def _into_lines(call: ast.Call) -> bool:
    """Whether a text is only laid out, line by line."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == "\n"


def _is_pattern(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and (value.id == "re" or value.id.isupper())


def _is_sentence(value: ast.expr) -> bool:
    if isinstance(value, ast.Attribute):
        return value.attr in FIELDS
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    if isinstance(called, ast.Name):
        of_error = called.id == "str" and bool(value.args) and _is_error(value.args[0])
        return of_error or (called.id.endswith(WORDERS) and called.id not in WORDERS)
    if isinstance(called, ast.Attribute):
        of_module = isinstance(called.value, ast.Name) and called.value.id in MODULES
        again = called.attr in {"casefold", "lower", "strip"} and _is_sentence(called.value)
        of_file = called.attr in {"read_text", "write_text"}
        return of_module or again or (called.attr.endswith(WORDERS) and not of_file)
    return False


def _is_error(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ERRORS
