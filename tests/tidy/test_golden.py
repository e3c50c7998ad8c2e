"""Golden files have exactly one section for each test that compares its output with one."""

from pathlib import Path

from tests.support import golden
from tests.tidy.tree import ROOT

MODULE = "def test_b(): ...\n\n\nasync def test_a(): ...\n"


def test_every_section_has_its_test() -> None:
    """Every section of a golden file belongs to an existing test.

    Otherwise no test would ever compare the section with an output."""
    files = sorted((ROOT / "tests").rglob(f"*{golden.SUFFIX}"))
    assert files
    for path in files:
        names = {name.partition("[")[0] for name in golden.sections(path)}
        assert names <= set(golden.tests_in(path.with_suffix(".py"))), path


def test_sections_are_in_the_order_of_their_tests(tmp_path: Path) -> None:
    """The sections of a golden file are written in the order of their tests.

    Sections without a test are dropped, and empty lines within a section are kept."""
    module = tmp_path / "test_x.py"
    module.write_text(MODULE)
    for name, text in (("test_a[one]", "A\n\na  "), ("test_gone", "gone"), ("test_b", "b")):
        golden.write(module, name, golden.rendered({"input": text}))
    found = golden.sections(tmp_path / "test_x.golden")
    assert list(found.items()) == [
        ("test_b", "input\n    b"), ("test_a[one]", "input\n    A\n\n    a"),
    ]  # fmt: skip
