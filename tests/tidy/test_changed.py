"""`make test-changed` chooses every test that imports a changed file, directly or indirectly."""

from tests.tidy.tree import python_files
from tools.changed import chosen, summary

SCORE = "services/apportion/core/placement/scores/nodes.py"


def test_a_module_of_the_product_reaches_the_tests_that_import_it() -> None:
    """A changed module selects exactly the tests that import it, directly or indirectly."""
    found = set(chosen([SCORE], python_files()))
    assert found >= {
        "tests/unit/core/placement/test_scores.py",
        "tests/properties/test_core_engine.py",
        "tests/simulation/test_simulation.py",
    }
    assert "tests/unit/runtime/process/test_lives.py" not in found


def test_a_test_that_starts_processes_may_run_any_module() -> None:
    """With `processes=True`, a changed module also selects all tests that start processes, directly
    or in a helper."""
    sources = {
        "services/apportion/core/a.py": "",
        "tests/support/starter.py": "START = 'apportion.cli.main'\n",
        "tests/e2e/test_a.py": "import tests.support.starter\n",
    }
    assert chosen(["services/apportion/core/a.py"], sources) == []
    assert chosen(["services/apportion/core/a.py"], sources, processes=True) == list(sources)[2:]


def test_what_is_not_python_reaches_those_that_name_it() -> None:
    """If a document, a fixture or a deleted module changes, the tests that name it are selected."""
    sources = {
        "tests/unit/test_page.py": "PAGE = 'docs/page.md'\n",
        "tests/unit/test_other.py": "import apportion.gone\n",
        "tests/unit/conftest.py": "",
        "tests/e2e/test_far.py": "",
    }
    assert chosen(["docs/page.md"], sources) == ["tests/unit/test_page.py"]
    assert chosen(["services/apportion/gone.py"], sources) == ["tests/unit/test_other.py"]
    assert len(chosen(["tests/unit/conftest.py"], sources)) == 2


def test_most_of_the_tests_come_with_a_shorter_way() -> None:
    """The summary states the number of selected tests.

    It suggests a shorter command only if most tests are selected."""
    few, most = summary(3, 550), summary(500, 550)
    assert [text.split()[0] for text in (few, most)] == ["3", "500"]
    assert ["pytest" in text for text in (few, most)] == [False, True]
