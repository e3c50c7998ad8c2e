"""Compare a renderer's sentences with golden files, which a person reviews when they change.

`test_x.golden` next to `test_x.py` has a section for each test. `pytest --write-golden FILE`
rewrites the sections of the tests that it runs."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

SUFFIX = ".golden"
SECTION = re.compile(r"^== (.+)$", re.MULTILINE)
HEAD = "What {} makes its product say. `pytest --write-golden` writes it; read what has changed.\n"


class Golden(Protocol):
    """A fixture that compares the texts of a test with its section of a golden file."""

    def __call__(self, texts: Mapping[str, str]) -> None:
        """Fail if `texts` differ from the test's section of the golden file.

        With `--write-golden`, write the section instead."""


def rendered(texts: Mapping[str, str]) -> str:
    """Return the lines of a golden file's section: each input, followed by its indented output."""
    lines = []
    for label, text in texts.items():
        lines += [label, *(f"    {line}".rstrip() for line in text.strip("\n").split("\n"))]
    return "\n".join(lines)


def sections(path: Path) -> dict[str, str]:
    """Return the sections of a golden file by test name; empty if the file does not exist."""
    parts = SECTION.split(path.read_text("utf-8")) if path.exists() else [""]
    return {name: text.strip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def tests_in(module: Path) -> list[str]:
    """Return the names of a module's test functions, in order."""
    return [
        node.name
        for node in ast.parse(module.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def write(module: Path, test: str, text: str) -> None:
    """Write the section of one test to the golden file at the test's position. Drop the sections of
    tests that no longer exist."""
    path, order = module.with_suffix(SUFFIX), tests_in(module)
    found = {
        name: part
        for name, part in {**sections(path), test: text}.items()
        if name.partition("[")[0] in order
    }
    names = sorted(found, key=lambda name: order.index(name.partition("[")[0]))
    body = "".join(f"\n== {name}\n{found[name]}\n" for name in names)
    path.write_text(HEAD.format(module.name) + body, "utf-8")
