"""Setup for every test: fixed Hypothesis examples, restored logging, golden files.

Hypothesis draws the same examples in every run and sets no time limit, so a test never fails by
chance. `PROPERTIES_EFFORT=10` draws ten times as many examples."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support import golden as golden_files
from tests.support import leftovers, starts
from tests.support.golden import Golden

settings.register_profile(
    "the same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same")

FORKED = {"contracts", "e2e", "integration"}
"""Folders whose services and verbs run as forks of a process that has imported them."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose whether the test and its fixtures start services as forks or as new programs."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    starts.use(folder in FORKED and item.get_closest_marker("executes") is None)


def pytest_configure() -> None:
    """Start a watchdog that ends the processes of a test session that was killed."""
    leftovers.watch()


def pytest_unconfigure() -> None:
    """End the process from which services are forked, and the watchdog of this test session."""
    starts.end()
    leftovers.end()


@pytest.fixture(autouse=True)
def _logs_put_back() -> Iterator[None]:
    """Restore the logging configuration after each test, because a service or verb may have changed
    it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--write-golden` to pytest."""
    parser.addoption("--write-golden", action="store_true", help="write golden files again")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Provide a function that compares texts with those in the golden file of the test's module.

    With `--write-golden` the function writes the golden file first."""
    name = request.node.name

    def compare(texts: Mapping[str, str]) -> None:
        text = golden_files.rendered(texts)
        if "tmp_path" in request.fixturenames:
            text = text.replace(f"{request.getfixturevalue('tmp_path')}", "FOLDER")
        if request.config.getoption("--write-golden"):
            golden_files.write(request.path, name, text)
        recorded = golden_files.sections(request.path.with_suffix(golden_files.SUFFIX))
        command = f"pytest --write-golden '{request.node.nodeid}'"
        assert text == recorded.get(name), f"read the difference, then: {command}"

    return compare
