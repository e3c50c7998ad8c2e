"""What the documents point to exists: a list of files that lies is worse than none."""

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
    """Paths of this repository that a text names and that are not there."""
    for path in PATHS.findall(text):
        if not (ROOT / path).exists():
            yield path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_documents_exist(document: str) -> None:
    """Every path of a document leads somewhere; of a pattern, the folder."""
    assert not list(dead_paths((ROOT / document).read_text()))


def test_a_dead_path_is_found() -> None:
    """In code marks, in a link and in a table; addresses elsewhere are not ours to judge."""
    text = "`tests/gone.py` [x](docs/gone.md) | services/gone/ | `tests/tidy` https://x.io/docs/y"
    assert list(dead_paths(text)) == ["tests/gone.py", "docs/gone.md", "services/gone/"]
