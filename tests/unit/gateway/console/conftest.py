"""Provide a Node.js process in which tests run the console's JavaScript modules."""

from collections.abc import Iterator

import pytest

from tests.support.node_modules import NodeModules, skip_unless_here


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeModules]:
    """Provide a Node.js process that can load the console's modules, for all tests."""
    skip_unless_here()
    running = NodeModules(tmp_path_factory.mktemp("console"))
    yield running
    running.close()
