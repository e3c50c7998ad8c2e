"""One cluster and one browser for all tests of the console.

Both are stopped after the last of these tests. Otherwise Playwright would block the event loop of
asynchronous tests that follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser.chromium import running_browser, skip_unless_here
from tests.support.standalone import Standalone

"""The first test also waits for the start of cluster and browser, and the last for their end."""
FLEET = """\
nodes:
- {node: h100-1, devices: 8xH100-80GB}
- {node: h100-2, devices: 8xH100-80GB}
- {node: h100-10, devices: 8xH100-80GB}
- {node: a100-mig-1, devices: "4xA100-40GB:mig"}
- {node: t4-1, devices: 4xT4}
"""


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Provide `apportion up` with five nodes and the sample pods, some of which cannot be
    placed."""
    skip_unless_here()
    folder = tmp_path_factory.mktemp("console")
    fleet = folder / "fleet.yaml"
    fleet.write_text(FLEET)
    with Standalone(folder / "data", "--fleet", str(fleet)) as running:
        yield running.up()


@pytest.fixture(scope="package")
def base(cluster: Standalone) -> str:
    """Return the address of the gateway that serves the console."""
    assert cluster.data is not None
    text = (Path(cluster.data) / "connection.json").read_text()
    return str(json.loads(text)["gateway"])


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Provide the Chromium that is installed on this machine."""
    skip_unless_here()
    with running_browser() as running:
        yield running
