"""Unit tests of the verbs that check ledgers and archives."""
