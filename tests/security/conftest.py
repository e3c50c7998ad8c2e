"""Fixtures: a ledger, and a control plane and a cluster for the attacks that need them."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world
from tests.support.ledger_fixtures import bus

__all__ = ["bus", "control_plane", "pytest_collection_modifyitems", "world"]
