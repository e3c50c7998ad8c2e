"""Fixtures for tests against a real API server. All tests of a run share one control plane. Each
test has its own `world`: an empty cluster, a ledger and services.

Invariant: without a control plane these tests are skipped with the reason. With
`APPORTION_REQUIRE_KUBERNETES=1` they fail with the reason instead."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.control_plane import REQUIRED, ControlPlane, binaries, find_binaries
from tests.support.kube_world import KubeWorld, running_world

PLANE = pytest.StashKey[ControlPlane]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip every test that needs a control plane if its programs are missing."""
    _, reason = find_binaries()
    if not reason or os.environ.get(REQUIRED) == "1":
        return
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def control_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ControlPlane:
    """Run a real etcd and kube-apiserver, which all tests of this run share."""
    plane = request.config.stash.get(PLANE, None)
    if plane is None:
        plane = ControlPlane(binaries(), tmp_path_factory.mktemp("control-plane"))
        request.config.add_cleanup(plane.stop)
        plane.start()
        request.config.stash[PLANE] = plane
    return plane


@pytest.fixture
async def world(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """Provide an empty cluster and an empty ledger for one test, in which the test can start
    services."""
    async with running_world(control_plane, tmp_path) as running:
        yield running
