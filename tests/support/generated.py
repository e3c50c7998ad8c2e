"""Fail if generated files are out of date: name them, and the command that writes them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outdated(made: Mapping[str, str]) -> list[str]:
    """Return the paths, relative to the repository, whose committed text is another one."""
    paths = ((path, ROOT / path) for path in made)
    return [
        path for path, file in paths if not file.is_file() or file.read_text("utf-8") != made[path]
    ]


def assert_none(differing: Iterable[object]) -> None:
    """Fail unless there are none; each is a path, or a line that begins with one."""
    listed = "\n".join(str(each).removeprefix(f"{ROOT}/") for each in differing)
    assert not listed, f"run `make generate`; these files are out of date:\n{listed}"
