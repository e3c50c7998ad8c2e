"""The control plane and cluster fixtures for every test of this folder."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world

__all__ = ["control_plane", "pytest_collection_modifyitems", "world"]
