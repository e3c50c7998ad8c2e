"""Verbs on the ledger itself: make, check, sign and restore it."""
