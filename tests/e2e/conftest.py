"""The control plane and the world around it, for every test of this folder."""

from tests.support.kube_fixtures import control_plane, world

__all__ = ["control_plane", "world"]
