"""Every path of the repository that a document names exists."""

import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import ROOT

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
TOPS = "services|schemas|tests|tools|deploy|docs|examples|requirements|.ci"
PATHS = re.compile(rf"(?<![\w/.-])(?:{TOPS})/[\w./-]*\w/?(?![\w*])")


def dead_paths(text: str) -> Iterator[str]:
    """Yield each path that a text names as part of this repository, but that does not exist."""
    for path in PATHS.findall(text):
        if not (ROOT / path).exists():
            yield path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_documents_exist(document: str) -> None:
    """Every path in a document exists; for a pattern, its folder exists."""
    assert not list(dead_paths((ROOT / document).read_text()))


def test_a_dead_path_is_found() -> None:
    """A dead path is reported in code marks, links and tables; external addresses are ignored."""
    text = "`tests/gone.py` [x](docs/gone.md) | services/gone/ | `tests/tidy` https://x.io/docs/y"
    assert list(dead_paths(text)) == ["tests/gone.py", "docs/gone.md", "services/gone/"]


def test_the_example_at_the_top_of_the_readme_is_part_of_a_real_answer() -> None:
    """The reason quoted at the top of README is also in the output shown further down.

    Another test compares that output with a real run."""
    head, _, rest = (ROOT / "README.md").read_text().partition("## Try it")
    [quoted] = re.findall(r"`(closest: [^`]+)`", head)
    [answer] = re.findall(r"\$ apportion why too-large\n(.+?)```", rest, re.DOTALL)
    assert quoted in " ".join(answer.split())
