"""Fixtures for tests with a node that has a real kubelet."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import binaries
from tests.support.kube_world import KubeWorld
from tests.support.real_kubelet import RealKubelet, missing

NODE = "gpu-1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Create a folder with a short path, because a Unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
async def kubelet(world: KubeWorld, folder: Path) -> AsyncIterator[RealKubelet]:
    """Run a real kubelet, whose node is the cluster's only node."""
    binary = binaries() / "kubelet"
    if reason := missing() or ("" if binary.exists() else "there is no kubelet of this version"):
        pytest.skip(reason)
    async with RealKubelet(world.plane, binary, folder, NODE) as running:
        yield running


def agent_options(kubelet: RealKubelet, devices: str) -> tuple[str, ...]:
    """Return the options of an agent that simulates `devices` on the kubelet's node."""
    places = (
        "--kubelet",
        kubelet.folder,
        "--cdi",
        kubelet.cdi,
        "--state",
        kubelet.folder / "state",
    )
    return ("--simulate", devices, "--node", NODE, *map(str, places))
