"""Tests that the manual pages say the same as `--help` and are valid roff."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from apportion.cli.main import VERBS, root
from apportion.cli.verbs.setup.shell import pages

PAGES = dict(pages(root))


def test_every_verb_has_its_page() -> None:
    """Every verb has a manual page, including the verbs of a group."""
    assert {f"apportion-{verb}" for verb in VERBS} < set(PAGES)
    assert {"apportion", "apportion-get-pods", "apportion-ledger-trim"} <= set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_well_formed(name: str) -> None:
    """A manual page has its sections in order, uses only known macros, and escapes the hyphens of
    options."""
    lines = PAGES[name].splitlines()
    assert lines[0].startswith(f'.TH "{name.upper()}" "1"')
    sections = [line for line in lines if line.startswith(".SH")]
    assert sections[:3] == [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"]
    macros = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert macros <= {".TH", ".SH", ".B", ".PP", ".TP"}
    assert not re.search(r"(?<!\\)--\w", "\n".join(lines[1:]))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_all_that_is_listed_is_described(name: str) -> None:
    """A manual page describes every argument and option that it lists."""
    lines = PAGES[name].splitlines()
    for place, line in enumerate(lines):
        if line == ".TP":
            assert lines[place + 2], lines[place + 1]


def test_the_formatter_has_nothing_to_say(tmp_path: Path) -> None:
    """If groff is installed, it formats every manual page without a warning."""
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff on this machine")
    for name, page in PAGES.items():
        path = tmp_path / f"{name}.1"
        path.write_text(page)
        done = subprocess.run(
            [groff, "-man", "-ww", "-z", str(path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), name
