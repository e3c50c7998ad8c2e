"""Unit tests of `runtime/ledger`."""
