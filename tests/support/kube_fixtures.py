"""Fixtures of tests against a real API server: one control plane for the run, a world per test.

Invariant: where there is no control plane these tests are skipped with the reason, or fail with it
where `APPORTION_REQUIRE_KUBERNETES=1` says that there must be one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.control_plane import REQUIRED, ControlPlane, binaries, find_binaries
from tests.support.kube_world import KubeWorld, running_world

PLANE = pytest.StashKey[ControlPlane]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One reason for all of them; a skip of each by itself would be told once for each."""
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
    """A real etcd and kube-apiserver, fresh for this run; one for all folders that ask for it."""
    plane = request.config.stash.get(PLANE, None)
    if plane is None:
        plane = ControlPlane(binaries(), tmp_path_factory.mktemp("control-plane"))
        request.config.add_cleanup(plane.stop)
        plane.start()
        request.config.stash[PLANE] = plane
    return plane


@pytest.fixture
async def world(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """A cluster and a ledger with nothing in them."""
    async with running_world(control_plane, tmp_path) as running:
        yield running
