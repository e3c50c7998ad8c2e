"""The control plane and the world around it, for those attacks that go by an API server."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world

__all__ = ["control_plane", "pytest_collection_modifyitems", "world"]
