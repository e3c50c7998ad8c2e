"""Check words: docstrings state a purpose, and no file names this machine.

Text that is true only on one machine (a registry's host, a local folder) must not be committed."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import PurePath

from tests.tidy.offence import Offence

SENTENCE_WORDS = 4
NOT_SHIPPED = ("tests/", "tools/")
VAGUE_NAMES = {"util", "utils", "common", "manager", "helper", "helpers", "base", "misc"}
RETIRED = {
    "census": "shape histogram",
    "gist": "reason key",
    "grounds": "rationale",
    "hear": "serve",
    "lack": "deficit, or exceeded",
    "market": "price table",
    "outlook": "filter result",
    "parked": "unschedulable",
    "portion": "shard",
    "relief": "queueing hint",
    "relieved": "freed",
    "sealing": "fencing",
    "seat": "charge the host",
    "spreading": "contention",
    "standing": "cluster facts",
    "storing": "commit",
    "survey": "fit query",
    "told": "reported",
    "unseat": "release the host",
    "untold": "unreported",
    "welcome": "node_ok",
}
"""Our former words, each with the term that replaced it (docs/contribute/architecture.md)."""
OPEN_TASK = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\s*\(#\d+\))")
# Written so that no pattern matches itself.
REGISTRY_HOSTS = re.compile(
    r"(?:(?:pypi|pythonhosted|npmjs|rubygems|debian)[.](?:org|com)|hub[.]docker[.]com"
    r"|(?:crates|docker|quay|ghcr)[.]io)(?=[/:\"'\s]|$)"
)
# The full name of an official image, under which podman stores it.
HOSTS_ALLOWED = re.compile(r"docker[.]io/library/")
MACHINE_PATHS = re.compile(r"(?<![\w.~}/-])/(work|root|home/\w+|Users/\w+)(/|(?=[\"'\s]|$))")


def docstrings(path: str, source: str) -> Iterator[Offence]:
    """Yield modules and tests without a proper docstring, and docstrings that only repeat the name.

    An implementation of a protocol may refer to that protocol: `See Ledger.append.`"""
    tree = ast.parse(source)
    opening = (ast.get_docstring(tree) or "").partition("\n\n")[0].strip()
    if len(opening.split()) < SENTENCE_WORDS or opening[-1] not in ".?!:":
        yield Offence(path, 1, "the module must open with a docstring: a sentence on why it exists")
    if not path.startswith(NOT_SHIPPED):
        for public in _public(tree):
            said = (ast.get_docstring(public) or "").split()
            if said and len(said) <= SENTENCE_WORDS and said[0] != "See":
                told = " ".join(said)
                yield Offence(path, public.lineno, f"{public.name}: {told!r} tells too little")
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_") and not ast.get_docstring(node):
            yield Offence(path, node.lineno, f"{node.name} must say its intent in a docstring")


def _public(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the public functions and classes of a module or class, at any depth."""
    for inner in node.body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(inner, kinds) and not inner.name.startswith("_"):
            yield inner
            if isinstance(inner, ast.ClassDef):
                yield from _public(inner)


def vague_name(path: str) -> Iterator[Offence]:
    """Yield modules and packages with vague names."""
    for part in PurePath(path).with_suffix("").parts:
        vague = VAGUE_NAMES.intersection(part.lower().split("_"))
        if vague:
            yield Offence(path, 0, f"{min(vague)!r} says nothing: name it for what it holds")


def retired_words(path: str, source: str) -> Iterator[Offence]:
    """Yield names of the product that contain a retired word."""
    if path.startswith(NOT_SHIPPED):
        return
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        if found.type != tokenize.NAME:
            continue
        for part in re.findall(r"[A-Z]?[a-z]+", found.string):
            if word := RETIRED.get(part.lower()):
                yield Offence(path, found.start[0], f"{found.string}: say {word}")


PHRASES = re.compile(
    r"(?<!`)\b(anew|whoever|nobody|somebody|anybody|meanwhile|in vain|comes? to nothing|by then"
    r"|of before|(?:is|are|was|were) told of|ha(?:s|ve) (?:a|its|their|no) place"
    r"|in (?:its|their) own words|a sort of|lets? go of|(?:is|are) to go)\b"
)


MESSAGES = tuple(
    f"services/apportion/{part}/"
    for part in (
        "admission",
        "agent",
        "binder",
        "callout",
        "extender",
        "gateway",
        "intake",
        "lab",
        "runtime",
        "scheduler",
        "watcher",
    )
)
"""Parts of the product in which string literals are checked as well."""
LITERALS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def retired_phrases(path: str, source: str) -> Iterator[Offence]:
    """Yield phrases that confused readers, in docstrings, comments and messages of the product."""
    if path.startswith(("tests/", "tools/")):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        prose = token.type == tokenize.COMMENT or token.string.startswith('"""')
        prose = prose or (path.startswith(MESSAGES) and token.type in LITERALS)
        for found in PHRASES.finditer(token.string.lower() if prose else ""):
            line = token.start[0] + token.string.count("\n", 0, found.start())
            yield Offence(path, line, f"{found[0]!r}: name the actor, or use the field's word")


MERGE_MARKS = ("<" * 7 + " ", ">" * 7 + " ")


def open_tasks(path: str, text: str) -> Iterator[Offence]:
    """Yield each mark of unfinished work without an issue number, and each merge conflict mark."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(MERGE_MARKS):
            yield Offence(path, number, "is one side of a merge: choose, and take the marks out")
        if OPEN_TASK.search(line):
            yield Offence(
                path, number, "unfinished work needs its issue's number: write (#12) behind"
            )


def machine_words(path: str, text: str) -> Iterator[Offence]:
    """Yield hosts of package registries and folders of one machine."""
    for number, line in enumerate(text.splitlines(), 1):
        if REGISTRY_HOSTS.search(HOSTS_ALLOWED.sub("", line)):
            yield Offence(
                path, number, "names a package registry: leave that to the machine's settings"
            )
        if MACHINE_PATHS.search(line):
            yield Offence(path, number, "names a folder of one machine: make it relative")
