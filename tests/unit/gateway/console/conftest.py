"""Provide one Node.js process for all tests of the console's modules."""

from collections.abc import Iterator

import pytest

from tests.support.node_modules import NodeModules, skip_unless_here


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeModules]:
    """Yield the console's modules, loaded in Node.js."""
    skip_unless_here()
    running = NodeModules(tmp_path_factory.mktemp("console"))
    yield running
    running.close()
