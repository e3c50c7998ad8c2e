"""Fixtures with a ledger for the tests of this folder."""

from tests.support.ledger_fixtures import bus, facts

__all__ = ["bus", "facts"]
