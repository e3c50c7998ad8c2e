"""Unit tests of reading, writing and archiving the ledger."""
