"""The committed compatibility page is up to date with its table of rows and with today's tests."""

from pathlib import Path

import pytest

from tests.support.golden import Golden
from tools.compatibility import (
    ROOT,
    Difference,
    Row,
    Shown,
    System,
    Table,
    by_row,
    main,
    page,
    problems,
)


def test_the_committed_page_is_the_generated_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed compatibility page is up to date, and every row has a test.

    If it is outdated, run `make generate`."""
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_what_is_not_shown_is_named(golden: Golden) -> None:
    """The compatibility page's generator reports rows without tests, and tests of unknown rows."""
    rows = Table((System("S", (Row("A1", "one"), Row("A2", "two", real="`pytest tests/gpu`"))),))
    shown = {"Z9": [Shown("tests/unit/test_x.py", "test_Z9_more", "")]}
    golden({"A1 and A2 without a test, Z9 without a row": "\n".join(problems(rows, shown))})


def test_a_test_is_found_by_its_name() -> None:
    """The compatibility page lists a test in the row whose id is part of the test's name."""
    here = by_row(ROOT / "tests" / "unit")
    assert here["A1"][0].path.startswith("tests/unit/")
    assert all(test.says for tests in here.values() for test in tests)
    assert "golden" not in str([test.path for tests in here.values() for test in tests])
    assert Path(ROOT / here["A1"][0].path).is_file()


def test_a_row_shows_its_tests_and_what_is_missing(golden: Golden) -> None:
    """A row of the compatibility page lists its tests, and the hardware on which it must still be
    tested."""
    rows = Table((System("S", (Row("A1", "one", real="a GPU"),)),))
    shown = {"A1": [Shown("tests/t.py", "test_A1_the_card_s_own", 'Says "so" | so.')]}
    golden({"A1": page(rows, shown).splitlines()[-1]})


def test_a_difference_shows_what_happens_and_its_tests(golden: Golden) -> None:
    """The compatibility page lists each difference between Apportion and other systems, with the
    difference's tests."""
    several = Difference("F1", "One", ("There.", "Then."), ("Here.", "Now."))
    rows = Table((), (several, Difference("F2", "Two", ("That.",), ("This.",))))
    shown = {"F1": [Shown("tests/t.py", "test_F1_so", "So.")]}
    assert problems(rows, shown) == []
    sections = page(rows, shown).partition("### F1")
    golden({"F1 and F2": "".join(sections[1:])})
