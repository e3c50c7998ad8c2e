"""Fixtures of tests against a real API server: one control plane for the run, a world per test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane, find_binaries
from tests.support.kube_world import KubeWorld, running_world


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Etcd and kube-apiserver, fresh for this run; skips where they cannot be had."""
    plane = ControlPlane(find_binaries(), tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
async def world(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """A cluster and a ledger with nothing in them."""
    async with running_world(control_plane, tmp_path) as running:
        yield running
