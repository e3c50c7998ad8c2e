"""Follow a recipe of CONTRIBUTING.md in a copy of the product, and count the files that must
change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tests.tidy.tree import ROOT

PRODUCT = ("services", "schemas")
COPIED = (*PRODUCT, "tools")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so")


class Scratch:
    """A copy of the product in a folder, which a test can edit and run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = os.pathsep.join(str(folder / name) for name in PRODUCT)
        self._touched: set[str] = set()
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
        (folder / "docs/reference").mkdir(parents=True)

    @contextmanager
    def recipe(self, title: str, *, most: int) -> Iterator[None]:
        """Check that the changes in this block follow the recipe with that title.

        The changes may touch at most `most` product files, and the recipe must name each file or
        its folder."""
        self._touched.clear()
        yield
        product = {path for path in self._touched if path.startswith(PRODUCT)}
        assert len(product) <= most, f"{title} takes {sorted(product)}"
        text = recipe_text(title)
        for path in product:
            named = (f"`{path}`", *(f"`{folder}/`" for folder in PurePosixPath(path).parents))
            found = any(name in text for name in named)
            assert found, f"the recipe of {title} forgets {path}"

    def add(self, path: str, text: str) -> None:
        assert not (self.folder / path).exists(), path
        (self.folder / path).write_text(text)
        self._touched.add(path)

    def insert(self, path: str, before: str, text: str) -> None:
        """Insert text before the only occurrence of `before` in the file."""
        whole = (self.folder / path).read_text()
        assert whole.count(before) == 1, f"{path} has {whole.count(before)} times {before!r}"
        (self.folder / path).write_text(whole.replace(before, text + before))
        self._touched.add(path)

    def append(self, path: str, text: str) -> None:
        with (self.folder / path).open("a") as file:
            file.write(text)
        self._touched.add(path)

    def run(self, *arguments: str, **environment: str) -> str:
        """Run Python with these arguments in the copy, and return its output."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, capture_output=True, text=True,
            timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": self.path, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def recipe_text(title: str) -> str:
    """Return the text of the recipe with this title in CONTRIBUTING.md."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", guide, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no recipe for {title}"
    return found[1]


def place_of(thing: object) -> str:
    """Return the source file of a class, function or module, relative to the repository's root."""
    module = sys.modules[getattr(thing, "__module__", "") or getattr(thing, "__name__", "")]
    assert module.__file__
    return Path(module.__file__).relative_to(ROOT).as_posix()
