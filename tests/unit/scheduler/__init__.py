"""Unit tests of the scheduler without a ledger."""
