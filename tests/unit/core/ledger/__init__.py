"""Unit tests of `core/ledger`."""
