"""Find the files that the tidy rules check: everything that could be committed, without using git.

A source archive has no git, and an uncommitted file must already obey the rules."""

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HIDDEN_BUT_OURS = {".ci", ".github"}
NOT_OURS = {"__pycache__", "build", "dist", "node_modules"}
TEXT_SUFFIXES = {
    ".cfg", ".conf", ".css", ".html", ".in", ".js", ".json", ".md", ".py", ".sh", ".tf", ".toml",
    ".tpl", ".txt", ".yaml", ".yml", "",
}  # fmt: skip


def files() -> Iterator[str]:
    """Yield the paths of all our files relative to the root, in a fixed order, without build
    outputs."""
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name in HIDDEN_BUT_OURS
            or not (name.startswith(".") or name in NOT_OURS or name.endswith(".egg-info"))
        )
        for name in sorted(names):
            if not name.endswith(".so") and name != ".git":  # in a git worktree, `.git` is a file
                yield os.path.relpath(Path(folder) / name, ROOT)


def python_files() -> dict[str, str]:
    """Return the path and source of every Python file."""
    return {path: (ROOT / path).read_text() for path in files() if path.endswith(".py")}


@cache
def parsed(source: str) -> ast.Module:
    """Return a file's syntax tree. It is cached for all rules, so callers must not change it."""
    return ast.parse(source)


def text_files() -> dict[str, str]:
    """Return the path and text of every file that is valid UTF-8."""
    found: dict[str, str] = {}
    for path in files():
        if Path(path).suffix not in TEXT_SUFFIXES:
            continue
        try:
            found[path] = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
    return found
