"""Unit tests of `cli/verbs/ledger`."""
