"""`make test-changed` misses no test that imports what changed, at whatever distance."""

from tests.tidy.tree import python_files
from tools.changed import chosen

SCORE = "services/apportion/core/placement/scores/nodes.py"


def test_a_module_of_the_product_reaches_the_tests_that_import_it() -> None:
    """Directly or through other modules; a test that knows nothing of it is spared."""
    found = set(chosen([SCORE], python_files()))
    assert found >= {
        "tests/unit/core/placement/test_scores.py",
        "tests/properties/test_core_engine.py",
        "tests/simulation/test_simulation.py",
    }
    assert "tests/unit/runtime/process/test_lives.py" not in found


def test_a_test_that_starts_processes_may_run_any_module() -> None:
    """It is chosen where these are asked for, also through the module that starts them for it."""
    sources = {
        "services/apportion/core/a.py": "",
        "tests/support/starter.py": "START = 'apportion.cli.main'\n",
        "tests/e2e/test_a.py": "import tests.support.starter\n",
    }
    assert chosen(["services/apportion/core/a.py"], sources) == []
    assert chosen(["services/apportion/core/a.py"], sources, processes=True) == list(sources)[2:]


def test_what_is_not_python_reaches_those_that_name_it() -> None:
    """A document, a fixture of a folder, and a module that is gone."""
    sources = {
        "tests/unit/test_page.py": "PAGE = 'docs/page.md'\n",
        "tests/unit/test_other.py": "import apportion.gone\n",
        "tests/unit/conftest.py": "",
        "tests/e2e/test_far.py": "",
    }
    assert chosen(["docs/page.md"], sources) == ["tests/unit/test_page.py"]
    assert chosen(["services/apportion/gone.py"], sources) == ["tests/unit/test_other.py"]
    assert len(chosen(["tests/unit/conftest.py"], sources)) == 2
