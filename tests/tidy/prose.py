"""Find code that parses sentences written for people; code must read facts from fields instead.

A text counts as a sentence if it comes from a field that holds sentences, a function that renders
text, or an error."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.tidy.offence import Offence
from tests.tidy.tree import parsed

FIELDS: Final = frozenset((
    "available_words", "awaits", "cause", "choice", "clauses", "cure", "error", "fix", "headline",
    "last_failure", "lead", "message", "missing", "needed_words", "problem", "reason",
    "reason_words", "rejection", "room", "sentence", "since_text", "spared", "summary", "text",
    "unblocked_by", "unready", "words",
))  # fmt: skip
"""Fields of answers and errors that hold sentences."""
WORDERS: Final = ("_words", "_text", "_with_text")
"""Name endings of functions that render sentences."""
MODULES: Final = frozenset((
    "words", "answer_text", "event_text",
))  # fmt: skip
"""Modules of `core/explain/text` in which every function renders sentences."""
ERRORS: Final = frozenset(("error", "died", "failure", "refused", "wrong", "problem", "exc"))
METHODS: Final = frozenset((
    "split", "rsplit", "partition", "rpartition", "replace", "startswith", "endswith",
    "removeprefix", "removesuffix", "find", "index", "count",
))  # fmt: skip
OUTSIDE: Final = {
    "services/apportion/binder/kubernetes/gangs.py": "the API server says only here which it means",
    "services/apportion/callout/tokens.py": "the API server's error may have the token in it",
    "services/apportion/runtime/jetstream/client.py": "nats-py gives no code of this error",
    "services/apportion/runtime/files/safe_yaml.py": "the parser's message, cut to its first line",
}
"""Modules that may read texts of other systems, with the reason."""
PATTERNS: Final = frozenset((
    "match", "fullmatch", "search", "sub", "split", "findall", "finditer", "subn",
))  # fmt: skip


def reads(path: str, source: str) -> Iterator[Offence]:
    """Yield each expression in services/ that parses or searches a sentence."""
    if not path.startswith("services/") or path in OUTSIDE:
        return
    tree = parsed(source)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = dict[int, Offence]()
    for scope in (tree, *functions):
        named = _named(scope)
        for node in ast.walk(scope):
            read = _read(node)
            if isinstance(node, ast.expr) and read is not None and _is_sentence(read, named):
                said = f"{ast.unparse(node)} reads a sentence: give the fact a field"
                found[node.lineno] = Offence(path, node.lineno, said)
    yield from found.values()


def _named(scope: ast.AST) -> frozenset[str]:
    """Return the variables of a function that are assigned a sentence anywhere in the function."""
    if isinstance(scope, ast.Module):
        return frozenset()
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    names = frozenset[str]()
    for _ in range(2):  # the second pass follows variables assigned from variables
        names |= {
            target.id
            for node in assigned
            if _is_sentence(node.value, names)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
    return names


def _read(node: ast.AST) -> ast.expr | None:
    """Return the expression that this node parses or searches as text, or None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in PATTERNS and node.args and _is_pattern(node.func.value):
            return node.args[-1]
        if node.func.attr in METHODS and not _into_lines(node):
            return node.func.value
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.comparators[0]
    return None


def _into_lines(call: ast.Call) -> bool:
    """Return True if the call only splits a text into lines."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == "\n"


def _is_pattern(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and (value.id == "re" or value.id.isupper())


def _is_sentence(value: ast.expr, named: frozenset[str]) -> bool:
    parts: list[ast.expr] = []  # if one of these is a sentence, the whole is one
    match value:
        case ast.Attribute():
            return value.attr in FIELDS
        case ast.Name():
            return value.id in named
        case ast.Call():
            return _is_worded(value, named)
        case ast.JoinedStr():
            parts = [each.value for each in value.values if isinstance(each, ast.FormattedValue)]
        case ast.BinOp(op=ast.Add()):
            parts = [value.left, value.right]
        case ast.IfExp():
            parts = [value.body, value.orelse]
        case ast.BoolOp():
            parts = value.values
    return any(_is_sentence(part, named) for part in parts)


def _is_worded(value: ast.Call, named: frozenset[str]) -> bool:
    called = value.func
    if isinstance(called, ast.Name):
        of_error = called.id == "str" and bool(value.args) and _is_error(value.args[0])
        return of_error or (called.id.endswith(WORDERS) and called.id not in WORDERS)
    if isinstance(called, ast.Attribute):
        of_module = isinstance(called.value, ast.Name) and called.value.id in MODULES
        same = {"casefold", "lower", "strip", "removeprefix", "removesuffix", "replace"}
        again = called.attr in same and _is_sentence(called.value, named)
        of_file = called.attr in {"read_text", "write_text"}
        return of_module or again or (called.attr.endswith(WORDERS) and not of_file)
    return False


def _is_error(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ERRORS


TYPOGRAPHY: Final = frozenset(("services/apportion/gateway/console/static/js/typography.js",))
"""Modules that may read a text, but only to change how it looks."""
SCRIPT_NAMES: Final = frozenset((
    "awaits", "cause", "cure", "headline", "last_failure", "lead", "message", "reason", "rejection",
    "sentence", "unblocked_by", "unready",
))  # fmt: skip
"""Fields whose names, as JavaScript variables, can only be sentences."""
_SCRIPT_METHODS = (
    "split|replace|replaceAll|startsWith|endsWith|includes|indexOf|lastIndexOf"
    "|search|match|matchAll"
)
_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`\\])//[^\n]*", re.DOTALL)
_TAKEN = re.compile(r"\{([^{}]*)\}\s*(?:\)\s*(?:=>|\{)|=[^=>])")
"""Matches a destructuring pattern in JavaScript; its group is the content of the braces."""
_BOUND = re.compile(rf"\b(?:{'|'.join(sorted(FIELDS))})\s*:\s*(\w+)\s*[,}}=]")
"""Matches a field that is destructured into a variable of another name."""
_ASSIGNED = re.compile(
    rf"\b(?:const|let)\s+(\w+)\s*=\s*[^;]*?\.(?:{'|'.join(sorted(FIELDS))})\b(?![\w(])[^;.(]*;"
)


def script_reads(path: str, source: str) -> Iterator[Offence]:
    """Yield each location in JavaScript where a sentence is parsed or searched."""
    if path in TYPOGRAPHY:
        return
    text = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), source)
    taken = {name for inside in _TAKEN.findall(text) for name in re.findall(r"\w+", inside)}
    names = (
        SCRIPT_NAMES | (taken & FIELDS) | set(_BOUND.findall(text)) | set(_ASSIGNED.findall(text))
    )
    field = rf"[.]\s*(?:{'|'.join(sorted(FIELDS))})"
    bare = rf"(?<![\w.$\"'#-])(?:{'|'.join(sorted(names))})"
    prose = rf"(?:{field}|{bare})\b(?!\s*[:(=])"
    fallback = r"(?:\s*\?\?\s*\"\"\s*)?"
    patterns = (
        rf"{prose}{fallback}\)?\s*[?]?[.]\s*(?:{_SCRIPT_METHODS})\(",
        rf"[.](?:test|exec)\(\s*[\w.?$]*?{prose}",
        rf"[.](?:test|exec)\(\s*{bare}\b",
    )
    found = {
        text.count("\n", 0, match.end()) + 1
        for pattern in patterns
        for match in re.finditer(pattern, text)
    }
    yield from (
        Offence(path, line, "reads a sentence: let it carry the fact") for line in sorted(found)
    )
