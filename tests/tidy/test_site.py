"""The documentation builds as a site: every page is in its navigation, and every link resolves."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT
from tools.site_links import for_site

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in
         sorted((ROOT / "docs").rglob("*.md"))}  # fmt: skip
OUTSIDE = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^()\s#]*)(?:#([^()\s]*))?(?: \"[^\"]*\")?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(r"<(?:script|img|iframe|link)[^>]* (?:src|href)=\"?(?:https?:)?//[^\s\">]*")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
    ]  # --quiet hides warnings from --strict
    return subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(site)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    """The strict build succeeds, renders every page, and creates a search index."""
    made = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert {path.removeprefix("docs/") for path in PAGES} == made - {"404.md"}
    assert (site / "search/search_index.json").stat().st_size > 100_000


def test_the_site_needs_no_other_host(site: Path) -> None:
    """No page loads a script, style, font or picture from another host."""
    assert FETCHED.search('<script src="https://x.io/a.js">')
    for page in site.rglob("*.html"):
        assert not FETCHED.findall(page.read_text("utf-8")), page


def test_a_broken_page_fails_the_build(tmp_path: Path) -> None:
    """The build reports a page outside the navigation, a broken link and a missing anchor."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n\n[x](gone.md) [y](other.md#gone)\n")
    (docs / "other.md").write_text("# Other\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {docs}\nhooks: []\nnav: [index.md]\n"
    )
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    for found in ("  - other.md", "'gone.md'", "'other.md#gone'"):
        assert found in done.stderr


def anchors(text: str) -> set[str]:
    """Return the anchors that a Markdown text defines."""
    found = set(re.findall(r"<a (?:name|id)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#+ +(.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return found


def dead_links(path: str, text: str) -> Iterator[str]:
    """Yield each link of a document whose file or anchor in this repository does not exist."""
    for to, anchor in LINK.findall(CODE.sub("", text)):
        target = (ROOT / path).parent / to if to else ROOT / path
        if ":" in to:
            continue
        if not target.exists():
            yield to
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            yield f"{to}#{anchor}"


@pytest.mark.parametrize("path", [*OUTSIDE, *PAGES])
def test_links_resolve(path: str) -> None:
    """In the repository, each link of a document leads to an existing page, heading or file."""
    assert not list(dead_links(path, (ROOT / path).read_text("utf-8")))


def test_a_dead_link_is_found() -> None:
    """The check reports a missing file and a missing heading, but ignores other sites and code."""
    text = (
        "[a](docs/gone.md) [b](docs/index.md#gone) [c](https://x.io) `[d](e.md)` [f](#here)\n# Here"
    )
    found = list(dead_links("README.md", text))
    assert found == ["docs/gone.md", "docs/index.md#gone", "#here"]


def misread(text: str) -> Iterator[int]:
    """Yield lines that the site and GitHub render differently.

    On the site, a list or table needs a blank line before it, and a nested list four spaces."""
    before, code = "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            paragraph = before.strip() and not before.startswith((" ", "|", "#"))
            starts = line.startswith("|") or ITEM.match(line)
            if (starts and paragraph and not ITEM.match(before)) or re.match(r" {1,3}[-*] ", line):
                yield number
        before = line


@pytest.mark.parametrize("path", PAGES)
def test_lists_and_tables_render_alike(path: str) -> None:
    """Lists and tables render the same on the site and on GitHub."""
    assert not list(misread(PAGES[path]))


def test_a_misread_list_is_found() -> None:
    """The check reports a list or table right after a paragraph, and a list nested by two
    spaces."""
    assert list(misread("Text:\n- one\n- two\n  - three\n\n- four\n\nText\n| a |\n")) == [2, 4, 9]


def test_links_out_of_the_documentation() -> None:
    """A link from a page to a file outside the documentation becomes plain text on the site.

    If `repo_url` is set, the link leads to the file in the repository instead."""
    link = '[a test](../../tests/tidy/tree.py "Its sentence.") [b](pods.md) [c](../../gone.py)'
    rest = "[b](pods.md) [c](../../gone.py)"
    assert for_site(link, "concepts/ledger.md") == f"a test {rest}"
    assert for_site(link, "concepts/ledger.md", "https://x.io/r/") == (
        f"[a test](https://x.io/r/blob/main/tests/tidy/tree.py) {rest}"
    )


def test_bars_in_code_of_tables() -> None:
    """A `|` in a table's code is escaped for GitHub, and plain on the site."""
    assert for_site("| `a\\|b` | c\\|d |\n`e\\|f`", "index.md") == "| `a|b` | c\\|d |\n`e\\|f`"
