"""A ledger for every test of this folder that asks for one."""

from tests.support.ledger_fixtures import bus, facts

__all__ = ["bus", "facts"]
