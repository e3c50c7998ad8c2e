"""Fixtures for the attacks: a ledger for all of them, and a control plane and cluster for some."""

from tests.support.kube_fixtures import control_plane, pytest_collection_modifyitems, world
from tests.support.ledger_fixtures import bus

__all__ = ["bus", "control_plane", "pytest_collection_modifyitems", "world"]
