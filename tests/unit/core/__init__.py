"""Unit tests of the pure core: the ledger's fold, devices and placement."""
