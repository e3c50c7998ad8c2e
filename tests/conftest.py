"""What holds for every test: examples that are the same in every run, logs put back, golden files.

By itself Hypothesis draws other examples in every run, and takes one that was slow for a fault, as
it is where the machine was busy elsewhere: a change would fail by chance for what is none of it.
More of them, and so others, are drawn with `PROPERTIES_EFFORT=10`, or by
`--hypothesis-profile=default`."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support import golden as golden_files
from tests.support import starts
from tests.support.golden import Golden

settings.register_profile(
    "the same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same")

FORKED = {"contracts", "e2e", "integration"}
"""Folders whose services and verbs are forks of a process that has imported them."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fork or execute what this test starts, and its fixtures with it."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    starts.use(folder in FORKED and item.get_closest_marker("executes") is None)


def pytest_unconfigure() -> None:
    """End the process that was forked."""
    starts.end()


@pytest.fixture(autouse=True)
def _logs_put_back() -> Iterator[None]:
    """A service or verb that ran in this process has set them up: the next test begins without."""
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
    """Add the option that writes golden files."""
    parser.addoption("--write-golden", action="store_true", help="write golden files again")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares what the product says with the golden file beside the test's module."""
    name = request.node.name

    def compare(texts: Mapping[str, str]) -> None:
        text = golden_files.rendered(texts)
        if "tmp_path" in request.fixturenames:
            text = text.replace(f"{request.getfixturevalue('tmp_path')}", "FOLDER")
        if request.config.getoption("--write-golden"):
            golden_files.write(request.path, name, text)
        recorded = golden_files.sections(request.path.with_suffix(golden_files.SUFFIX))
        assert text == recorded.get(name), "pytest --write-golden writes it; read the difference"

    return compare
