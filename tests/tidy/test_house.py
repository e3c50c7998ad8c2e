"""The code base's structure (such as folder sizes and import cycles) is within its limits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.house import FIGURES, MODULES_MAX, ONE_IMPORTER_LINES, House, table

HOUSE = House()
STRUCTURAL = [figure for figure in FIGURES if figure.structural]
VERBS = 'VERBS = ("apportion.cli.verbs.get:command", "apportion.cli.verbs.why:command")\n'


@pytest.mark.parametrize("name", [figure.name for figure in STRUCTURAL])
def test_the_structure_holds(name: str) -> None:
    """No count of structural flaws, such as import cycles, exceeds its limit plus its allowance."""
    (figure,) = (each for each in STRUCTURAL if each.name == name)
    found = figure.places(HOUSE)
    listed = "\n".join((figure.excess(len(found)), *found))
    assert len(found) <= figure.limit + figure.owed, listed


def test_only_structural_figures_owe() -> None:
    """Only figures whose limit is enforced by a test may have an allowance above the limit."""
    assert all(figure.structural for figure in FIGURES if figure.owed)


def house(root: Path, **sources: str) -> House:
    """Create a small checkout of these sources.

    An argument's name is a path below `services/apportion`, with `__` for each slash."""
    for name, source in ({"cli__main": VERBS} | sources).items():
        path = root / "services" / "apportion" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return House(root)


def count(name: str) -> Callable[[House], list[str]]:
    """Return the function that lists the locations counted by the figure `name`."""
    return next(figure.places for figure in FIGURES if figure.name == name)


def test_a_private_function_that_is_used_once(tmp_path: Path) -> None:
    """The figure `used-once` counts only private functions, and only those with a single use."""
    source = "def _one(): ...\ndef _two(): ...\ndef three(): ...\n_one()\n_two()\n_two()\nthree()\n"
    assert count("used-once")(house(tmp_path, a=source)) == ["services/apportion/a.py:1: _one"]


def test_prose_in_an_assertion(tmp_path: Path) -> None:
    """The figure `prose` counts string literals of at least four words in a test's assertions."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        'def test_a():\n    assert f("no node fits it") == "a b c"\n    g("this is no assertion")\n'
        'def other():\n    assert x == "a b c d"\n'
    )
    assert count("prose")(House(tmp_path)) == ["tests/test_a.py:2: 'no node fits it'"]


def test_a_folder_with_too_many_modules(tmp_path: Path) -> None:
    """The figure `folders` counts folders with too many modules, not counting `__init__`."""
    full = {f"full__m{n}": "" for n in range(MODULES_MAX)} | {"full____init__": ""}
    assert count("folders")(house(tmp_path, **full)) == []
    assert count("folders")(house(tmp_path, full__more="")) == ["services/apportion/full: 21"]


def test_a_circle_of_imports(tmp_path: Path) -> None:
    """The figure `circles` counts cycles of imports, including indirect ones and imports in
    functions.

    Imports for type checking do not count."""
    small = house(
        tmp_path,
        a="from apportion import b\n",
        b="def f():\n    import apportion.c\n",
        c="from apportion.a import x\n",
        d="from apportion.e import x\n",
        e="if TYPE_CHECKING:\n    from apportion.d import y\n",
    )
    assert count("circles")(small) == ["apportion.a apportion.b apportion.c"]


def test_a_verb_that_imports_a_verb(tmp_path: Path) -> None:
    """The figure `verbs` counts verbs that import another verb.

    Imports of the command line's other modules do not count."""
    small = house(
        tmp_path,
        cli__verbs__get="from apportion.cli.verbs.why import command\n",
        cli__verbs__why="from apportion.cli.shared import x\n",
        cli__shared="",
    )
    assert count("verbs")(small) == ["apportion.cli.verbs.get imports apportion.cli.verbs.why"]


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("x = 1\n", True),
        ("class A(Protocol): ...\n", False),
        ("x = 1\n" * ONE_IMPORTER_LINES, False),
    ],
)
def test_a_small_module_with_one_importer(tmp_path: Path, source: str, *, counts: bool) -> None:
    """The figure `one-importer` counts small modules with a single importer.

    A module with a protocol, or one whose importer is in another layer, does not count."""
    small = house(tmp_path, core__a=source, core__b="from apportion.core import a\n")
    assert bool(count("one-importer")(small)) == counts
    second = house(tmp_path, core__c="from apportion.core.a import x\n")
    assert count("one-importer")(second) == []
    other = house(tmp_path / "other", core__a=source, lab__b="from apportion.core import a\n")
    assert count("one-importer")(other) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("functions", "def f():\n" + "    x = 1\n" * 60),
        ("complexity", "def f():  # noqa: C901 - a reason\n    x = 1\n"),
        ("classes", "class A:\n" + "    x = 1\n" * 300),
        ("long-files", "x = 1\n" * 801),
    ],
)
def test_one_line_over_a_budget_is_reported(tmp_path: Path, name: str, source: str) -> None:
    """A function, class or file that is too long by one line is counted.

    A function is also counted if its complexity warning is suppressed."""
    assert len(count(name)(house(tmp_path, a=source))) == 1
    assert count(name)(house(tmp_path, a="x = 1\n")) == []


def test_the_table_has_every_figure_with_its_limit(tmp_path: Path) -> None:
    """The table lists every figure with its limit, and marks figures over their limit."""
    rows = [line.split() for line in table(house(tmp_path, a="x = 1\n" * 801))][1:]
    assert [(row[0], row[2]) for row in rows] == [(f.name, f"{f.limit:,}") for f in FIGURES]
    assert [row[0] for row in rows if "<--" in row] == ["long-files"]
