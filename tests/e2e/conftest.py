"""Fixtures for every test of this folder: the control plane, and a cluster on it."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world
from tests.support.kubelet_fixtures import folder, kubelet

__all__ = ["control_plane", "folder", "kubelet", "pytest_collection_modifyitems", "world"]
