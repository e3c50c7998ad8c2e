"""Fixtures shared by all end-to-end tests, such as a control plane and a real kubelet."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world
from tests.support.kubelet_fixtures import folder, kubelet

__all__ = ["control_plane", "folder", "kubelet", "pytest_collection_modifyitems", "world"]
