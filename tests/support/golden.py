"""Golden files: the sentences of a renderer, which a person reads when they change.

`test_x.golden` beside `test_x.py` has a section for each test, and in it what the product made of
each input. A test asserts facts; that the sentences are as before is compared here, once. After a
change of wording `pytest --write-golden FILE` writes the sections of the tests that it runs, and
the difference is reviewed with the change."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

SUFFIX = ".golden"
SECTION = re.compile(r"^== (.+)$", re.MULTILINE)
HEAD = "What {} makes its product say. `pytest --write-golden` writes it; read what has changed.\n"


class Golden(Protocol):
    """The fixture: compare texts, by what they are made of, with the section of this test."""

    def __call__(self, texts: Mapping[str, str]) -> None:
        """Fail where the section is another, or write it with `--write-golden`."""


def rendered(texts: Mapping[str, str]) -> str:
    """The lines of a section: each input, and below it, indented, what was made of it."""
    lines = []
    for label, text in texts.items():
        lines += [label, *(f"    {line}".rstrip() for line in text.strip("\n").split("\n"))]
    return "\n".join(lines)


def sections(path: Path) -> dict[str, str]:
    """The sections of a golden file by the names of their tests; none of one that is not there."""
    parts = SECTION.split(path.read_text("utf-8")) if path.exists() else [""]
    return {name: text.strip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def tests_in(module: Path) -> list[str]:
    """The names of the test functions of a module, in its order."""
    return [
        node.name
        for node in ast.parse(module.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def write(module: Path, test: str, text: str) -> None:
    """Put the section of one test in its place, and leave out those whose tests have gone."""
    path, order = module.with_suffix(SUFFIX), tests_in(module)
    found = {
        name: part
        for name, part in {**sections(path), test: text}.items()
        if name.partition("[")[0] in order
    }
    names = sorted(found, key=lambda name: order.index(name.partition("[")[0]))
    body = "".join(f"\n== {name}\n{found[name]}\n" for name in names)
    path.write_text(HEAD.format(module.name) + body, "utf-8")
