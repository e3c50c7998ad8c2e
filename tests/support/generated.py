"""Fail a test if generated files are out of date. The message names the files and the command that
writes them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outdated(made: Mapping[str, str]) -> list[str]:
    """Return the paths of generated files that are out of date. `made` maps each path, relative to
    the repository, to the correct text."""
    paths = ((path, ROOT / path) for path in made)
    return [
        path for path, file in paths if not file.is_file() or file.read_text("utf-8") != made[path]
    ]


def assert_none(differing: Iterable[object]) -> None:
    """Fail if any file differs. Each item is a path, or a line that begins with a path."""
    listed = "\n".join(str(each).removeprefix(f"{ROOT}/") for each in differing)
    assert not listed, f"run `make generate`; these files are out of date:\n{listed}"
